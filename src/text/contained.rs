//! Code of others that may panic on odd files: the panic becomes a value, and nobody else hears of it.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

thread_local! {
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Runs `run`; when it panics, what the panic said.
pub(super) fn contained<T>(run: impl FnOnce() -> T) -> Result<T, String> {
    let before = INSIDE.replace(true);
    let ended = catch_unwind(AssertUnwindSafe(run));
    INSIDE.set(before);
    ended.map_err(|panic| {
        let text = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
        text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default()
    })
}

/// Whether a panic of this thread will become an ordinary error, so that a panic hook has nothing to say.
pub fn panics_are_contained() -> bool {
    INSIDE.get()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_runs_inside_is_contained() {
        assert!(!panics_are_contained());
        assert_eq!(contained(panics_are_contained), Ok(true));
        let nested = || {
            let inner = contained(|| panic!("{} file", "odd"));
            assert_eq!(inner, Err::<(), _>("odd file".to_owned()));
            panics_are_contained()
        };
        assert_eq!(contained(nested), Ok(true), "the outer one still holds");
        assert!(!panics_are_contained());
        let other = || std::thread::spawn(panics_are_contained).join().unwrap();
        assert_eq!(contained(other), Ok(false), "other threads are not inside");
    }
}
