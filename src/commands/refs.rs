//! What people call a model: `demo`, a file, a directory, a name in the store; perhaps with `:variant`.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use directories::ProjectDirs;

use super::work::{Report, Work};
use crate::engine::model::open_store;
use crate::engine::protocol::Variant;
use crate::error::{Error, Kind, Result, visible};
use crate::store::{Listing, Store, demo};

/// The name of the built-in model.
pub const DEMO: &str = demo::NAME;

/// A model that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Model {
    /// Its name, for people.
    pub name: String,
    /// Its file or directory; `None` is the built-in model.
    pub path: Option<PathBuf>,
    /// The variant that was asked for.
    pub variant: Option<Variant>,
}

/// Where packed models lie: `$SNUG_STORE`, or `snug/store` in the user's data directory.
pub fn store_dir() -> Option<PathBuf> {
    match std::env::var_os("SNUG_STORE") {
        Some(dir) if !dir.is_empty() => Some(PathBuf::from(dir)),
        _ => ProjectDirs::from("", "", "snug").map(|dirs| dirs.data_dir().join("store")),
    }
}

/// The names in the store, sorted, with their files.
pub fn stored() -> Vec<(String, PathBuf)> {
    let mut found: Vec<(String, PathBuf)> = store_dir()
        .and_then(|dir| fs::read_dir(dir).ok())
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let path = entry.path();
            let name = path.file_name()?.to_str()?.strip_suffix(".snug")?.to_owned();
            (!name.is_empty() && !name.starts_with('.')).then_some((name, path))
        })
        .collect();
    found.sort();
    found
}

/// Finds a model.
///
/// # Errors
/// `ModelNotFound` with the nearest names; `BadFile` for files that have to be packed first.
pub fn find(reference: &str) -> Result<Model> {
    let (base, variant) = split_variant(reference)?;
    let model = |path: Option<PathBuf>, name: &str| Model { name: name.into(), path, variant };
    if base == DEMO {
        return Ok(model(None, DEMO));
    }
    let path = Path::new(base);
    if path.exists() {
        let name = path.file_stem().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
        if path.is_file() && begins_with(path, b"GGUF") {
            return Err(pack_first(path, &name));
        }
        return Ok(model(Some(path.to_owned()), &name));
    }
    if let Some((snapshot, name)) = hub_snapshot(base) {
        return Ok(model(Some(snapshot), &name));
    }
    if let Some((name, file)) = stored().into_iter().find(|(name, _)| name == base) {
        return Ok(model(Some(file), &name));
    }
    Err(unknown(base))
}

/// Opens what [`find`] found, and holds it to the variant that was asked for.
pub fn open(model: &Model) -> Result<Store> {
    let store = open_store(model.path.as_deref())?;
    require(model, Variant::of(store.entries()))?;
    Ok(store)
}

/// The header and texts of what [`find`] found.
pub fn list(model: &Model) -> Result<Listing> {
    let listing = Listing::read(model.path.as_deref())?;
    require(model, Variant::of(listing.entries()))?;
    Ok(listing)
}

/// [`open`] for large files: with progress, and a way to stop.
pub fn open_with(model: &Model, report: Report<'_>, work: &Work) -> Result<Store> {
    let store = match &model.path {
        Some(path) => {
            Store::open_with(path, &|done, of| report(done, of), &|| work.is_cancelled())?
        }
        None => demo::open()?,
    };
    require(model, Variant::of(store.entries()))?;
    Ok(store)
}

/// Refuses a model that is not stored as its reference says.
pub fn require(model: &Model, is: Variant) -> Result<()> {
    match model.variant {
        Some(wanted) if wanted != is => Err(Error::bad_file(
            format!("cannot use {} as {}", model.name, wanted.name()),
            format!("its weights are stored as {}", is.name()),
            format!("leave out `:{}`, or pack the source again", wanted.name()),
        )),
        _ => Ok(()),
    }
}

fn split_variant(reference: &str) -> Result<(&str, Option<Variant>)> {
    match reference.rsplit_once(':') {
        Some((base, suffix)) if !Path::new(reference).exists() => match variant_named(suffix) {
            Some(variant) => Ok((base, Some(variant))),
            None if suffix == "w4a4kv4" => Err(Error::new(
                Kind::ModelNotFound,
                format!("cannot use {}", visible(reference)),
                "this version has no 4-bit models",
                format!("use `{}:lossless`", visible(base)),
            )),
            None => Ok((reference, None)),
        },
        _ => Ok((reference, None)),
    }
}

/// The directory or file that a source to pack means: a path, or a repository in the Hugging Face cache.
pub fn source(path: &Path) -> PathBuf {
    match path.to_str().filter(|_| !path.exists()).and_then(hub_snapshot) {
        Some((snapshot, _)) => snapshot,
        None => path.to_owned(),
    }
}

/// `org/name`, `org/name@revision`, with or without `hf://`: its directory in the cache that Hugging Face's own tools fill,
/// and its name. Nothing is downloaded.
fn hub_snapshot(base: &str) -> Option<(PathBuf, String)> {
    let (repo, revision) = repository(base)?;
    let set = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let home = || Some(directories::BaseDirs::new()?.home_dir().join(".cache"));
    let cache = match (set("HF_HUB_CACHE"), set("HF_HOME")) {
        (Some(cache), _) => cache,
        (None, Some(home)) => home.join("hub"),
        (None, None) => set("XDG_CACHE_HOME").or_else(home)?.join("huggingface").join("hub"),
    };
    let folder = cache.join(format!("models--{}", repo.replace('/', "--")));
    let commit = match fs::read_to_string(folder.join("refs").join(revision)) {
        Ok(commit) => commit.trim().to_owned(),
        Err(_) => revision.to_owned(),
    };
    if commit.is_empty() || commit.contains(['/', '\\']) || commit.starts_with('.') {
        return None;
    }
    let snapshot = folder.join("snapshots").join(&commit);
    snapshot.is_dir().then(|| (snapshot, format!("{repo}@{commit}")))
}

/// `org/name` and revision of a reference that can be one.
fn repository(base: &str) -> Option<(&str, &str)> {
    let name = base.strip_prefix("hf://").unwrap_or(base);
    let (repo, revision) = name.split_once('@').unwrap_or((name, "main"));
    let (org, model) = repo.split_once('/')?;
    let plain = |part: &str| {
        !part.is_empty()
            && !part.starts_with(['.', '~'])
            && part.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
    };
    let file = [".snug", ".gguf"].iter().any(|end| base.ends_with(end));
    (plain(org) && plain(model) && plain(revision) && !file).then_some((repo, revision))
}

fn variant_named(name: &str) -> Option<Variant> {
    [Variant::Bf16, Variant::Lossless].into_iter().find(|v| v.name() == name)
}

fn begins_with(path: &Path, magic: &[u8]) -> bool {
    let mut head = vec![0; magic.len()];
    fs::File::open(path).and_then(|mut f| f.read_exact(&mut head)).is_ok() && head == magic
}

fn pack_first(path: &Path, name: &str) -> Error {
    Error::bad_file(
        format!("cannot use {} as it is", visible(&path.display().to_string())),
        "it is a GGUF file, which has to be packed first",
        format!(
            "snug pack {} -o {}",
            quoted(&path.display().to_string()),
            quoted(&format!("{name}.snug"))
        ),
    )
}

/// A word as a POSIX shell reads it.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+=:,@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.into()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

fn unknown(base: &str) -> Error {
    let shown = visible(base);
    let what = format!("cannot find the model {shown}");
    if let Some((repo, _)) = repository(base) {
        let name = repo.rsplit('/').next().unwrap_or(repo);
        return Error::new(
            Kind::ModelNotFound,
            what,
            "it is neither a path nor in the Hugging Face cache, and this version does not download models",
            format!(
                "`hf download {repo}` puts it into that cache; `snug pack DIR -o {}` packs it",
                quoted(&format!("{name}.snug"))
            ),
        );
    }
    let files = [".snug", ".gguf"];
    if base.contains('/') || base.starts_with(['.', '~']) || files.iter().any(|f| base.ends_with(f))
    {
        let why = "there is no such file or directory";
        return Error::new(
            Kind::ModelNotFound,
            what,
            why,
            "check the path; `snug list` shows the store",
        );
    }
    let mut names: Vec<String> = stored().into_iter().map(|(name, _)| name).collect();
    names.push(DEMO.into());
    let near = nearest(base, &names);
    let todo = match near.as_slice() {
        [] => "`snug list` shows the models that are here".to_owned(),
        near => format!("did you mean {}?", near.join(" or ")),
    };
    Error::new(Kind::ModelNotFound, what, "it is neither a path nor a name in the store", todo)
}

/// Up to three names within a third of their length in edits, nearest first.
fn nearest(word: &str, names: &[String]) -> Vec<String> {
    let word = word.to_lowercase();
    let mut scored: Vec<(usize, &String)> = names
        .iter()
        .map(|name| (distance(&word, &name.to_lowercase()), name))
        .filter(|(d, name)| {
            *d <= (name.chars().count() / 3).max(1) || name.to_lowercase().contains(&word)
        })
        .collect();
    scored.sort();
    scored.into_iter().take(3).map(|(_, name)| visible(name)).collect()
}

/// Edits (insert, delete, replace, swap of neighbours) between two words.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut rows = vec![(0..=b.len()).collect::<Vec<usize>>()];
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let above = &rows[i - 1];
            let replace = above[j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut best = replace.min(above[j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(rows[i - 2][j - 2] + 1);
            }
            row.push(best);
        }
        rows.push(row);
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edits_are_counted() {
        for (a, b, d) in
            [("", "", 0), ("demo", "dmeo", 1), ("demo", "dem", 1), ("kitten", "sitting", 3)]
        {
            assert_eq!(distance(a, b), d, "{a} {b}");
        }
        let names = ["qwen3-8b".to_owned(), "smollm2-135m".into(), "demo".into()];
        assert_eq!(nearest("qwen3-8", &names), ["qwen3-8b"]);
        assert_eq!(nearest("smollm", &names), ["smollm2-135m"]);
        assert_eq!(nearest("zzz", &names), Vec::<String>::new());
    }

    #[test]
    fn the_pack_command_survives_a_shell() {
        assert_eq!(quoted("a b'c"), r"'a b'\''c'");
        assert_eq!(quoted("/x/y-1.gguf"), "/x/y-1.gguf");
    }
}
