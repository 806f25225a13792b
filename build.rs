//! Embeds the kernels' fatbins behind the source-hash gate.
//!
//! A family whose committed fatbin matches its sources is embedded as it is. A family whose sources changed is
//! compiled into `OUT_DIR` when nvcc is at hand; otherwise the build stops. Nothing is ever silently stale.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

#[path = "kernels/compile.rs"]
#[allow(dead_code)]
mod compile;

fn main() {
    let root = PathBuf::from(var("CARGO_MANIFEST_DIR"));
    let out = PathBuf::from(var("OUT_DIR"));
    println!("cargo:rerun-if-changed=kernels");
    println!("cargo:rerun-if-env-changed=SNUG_NVCC");
    println!("cargo:rerun-if-env-changed=UPDATE");
    match images(&root, &out) {
        Ok(code) => fs::write(out.join("images.rs"), code).expect("OUT_DIR is writable"),
        Err(message) => {
            eprintln!("{message}");
            std::process::exit(1);
        }
    }
}

fn var(name: &str) -> String {
    std::env::var(name).expect("cargo sets it")
}

/// Rust source of the table of images.
fn images(root: &Path, out: &Path) -> Result<String, String> {
    let kernels = root.join("kernels");
    let mut code =
        String::from("/// Every kernel family of this build.\npub static IMAGES: &[Image] = &[\n");
    let mut build = String::new();
    for family in compile::families(&kernels)? {
        let (fatbin, manifest) = image(root, out, &family)?;
        let _ = writeln!(
            code,
            "    Image {{ family: {family:?}, bytes: &Aligned(*include_bytes!({:?})).0, kernels: &{:?}, targets: &{:?} }},",
            fatbin.display().to_string(),
            compile::kernel_names(&manifest),
            compile::field(&manifest, "images").unwrap_or_default().split(' ').collect::<Vec<_>>(),
        );
        build.push_str(compile::field(&manifest, "binary").unwrap_or_default());
    }
    let id = compile::bytes_hash(build.as_bytes());
    let _ = writeln!(
        code,
        "];\n\n/// Hash over all images.\npub static BUILD_ID: &str = {:?};",
        &id[..12]
    );
    Ok(code)
}

/// The fatbin of a family that matches its sources, with its manifest.
fn image(root: &Path, out: &Path, family: &str) -> Result<(PathBuf, String), String> {
    let kernels = root.join("kernels");
    let fatbin = kernels.join(format!("prebuilt/{family}.fatbin"));
    let manifest = kernels.join(format!("prebuilt/{family}.toml"));
    let hash = compile::source_hash(&kernels, family)?;
    if let (Ok(bytes), Ok(text)) = (fs::read(&fatbin), fs::read_to_string(&manifest))
        && compile::field(&text, "source") == Some(hash.as_str())
        && compile::field(&text, "binary") == Some(compile::bytes_hash(&bytes).as_str())
    {
        return Ok((fatbin, text));
    }
    if std::env::var_os("UPDATE").is_some() && fatbin.exists() {
        // `UPDATE=1 cargo test prebuilt` is about to write fresh ones; compiling here too would double the wait.
        println!(
            "cargo:warning=kernels/{family}.cu: the old fatbin is embedded until UPDATE is unset"
        );
        return Ok((fatbin, fs::read_to_string(&manifest).unwrap_or_default()));
    }
    let Some(nvcc) = compile::find_nvcc(root) else {
        return Err(format!(
            "error: kernels/{family}.cu or a file it includes differs from kernels/prebuilt/{family}.fatbin\n  \
             why: the sources changed, and nvcc {} was not found (SNUG_NVCC, .toolchain/, CUDA_HOME, PATH)\n  \
             try: run `.ci/nvcc` to fetch it, or `git checkout kernels` to undo the change",
            compile::TOOLKIT
        ));
    };
    let fresh = out.join(format!("{family}.fatbin"));
    let text = compile::compile(&nvcc, &kernels, family, &fresh)?;
    println!(
        "cargo:warning=kernels/{family}.cu was compiled; commit it with `UPDATE=1 cargo test prebuilt`"
    );
    Ok((fresh, text))
}
