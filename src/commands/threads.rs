//! How many threads a command may use.

use crate::error::{Error, Result};

/// A number of threads on the command line.
pub fn count(text: &str) -> std::result::Result<usize, String> {
    match text.parse() {
        Ok(n @ 1..=1024) => Ok(n),
        _ => Err("use a number from 1 to 1024".into()),
    }
}

/// Runs `work` on a pool of `n` threads, or on the usual one.
pub fn on<T: Send>(n: Option<usize>, work: impl FnOnce() -> T + Send) -> Result<T> {
    let Some(n) = n else { return Ok(work()) };
    let pool = rayon::ThreadPoolBuilder::new().num_threads(n).build().map_err(|e| {
        Error::new(
            crate::error::Kind::Failure,
            format!("cannot start {n} threads"),
            e.to_string(),
            "use fewer of them",
        )
    })?;
    Ok(pool.install(work))
}
