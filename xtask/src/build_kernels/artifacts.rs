//! Stage 7: the committed PTX, one compressed file per kernel, and the manifest that ties it to its
//! source.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use flate2::read::GzDecoder;
use flate2::{Compression, GzBuilder};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::compiler::Compiler;
use super::{Built, hex, ptx};
use crate::workspace::root;

/// Raised when a stage changes in a way that changes the PTX.
const PIPELINE_VERSION: u32 = 1;

/// What stands in `kernels-gpu/artifacts/manifest.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// Version of the stages of this pipeline.
    pub pipeline: u32,
    /// SHA-256 over the names and texts of `kernels-gpu/src`.
    pub source_sha256: String,
    /// First line of `rustc --version`.
    pub rustc: String,
    /// LLVM's version.
    pub llvm: String,
    /// Every kernel, by name.
    pub kernels: BTreeMap<String, Kernel>,
}

/// One kernel in the manifest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kernel {
    /// PTX target.
    pub arch: String,
    /// SHA-256 of the PTX text, uncompressed.
    pub sha256: String,
    /// Length of the PTX text.
    pub bytes: usize,
    /// Instructions in the PTX.
    pub instructions: usize,
}

/// The folder of the committed artifacts.
pub fn dir() -> PathBuf {
    root().join("kernels-gpu/artifacts")
}

/// Describes a full build.
///
/// # Errors
/// When the source cannot be read.
pub fn manifest(compiler: &Compiler, built: &[Built]) -> Result<Manifest> {
    let kernel = |one: &Built| Kernel {
        arch: one.spec.arch.name().to_owned(),
        sha256: hex(&Sha256::digest(&one.ptx)),
        bytes: one.ptx.len(),
        instructions: ptx::opcodes(&one.ptx).len(),
    };
    Ok(Manifest {
        pipeline: PIPELINE_VERSION,
        source_sha256: source_sha256(&root().join("kernels-gpu/src"))?,
        rustc: compiler.version.clone(),
        llvm: compiler.llvm.clone(),
        kernels: built.iter().map(|one| (one.spec.name.to_owned(), kernel(one))).collect(),
    })
}

/// Writes the compressed PTX and the manifest, and removes the PTX of kernels that are no more.
///
/// # Errors
/// When a file cannot be written.
pub fn write(manifest: &Manifest, built: &[Built]) -> Result<()> {
    fs::create_dir_all(dir())?;
    for entry in fs::read_dir(dir())? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name.strip_suffix(".ptx.gz").is_some_and(|kernel| !manifest.kernels.contains_key(kernel)) {
            fs::remove_file(&path)?;
        }
    }
    for one in built {
        let path = dir().join(format!("{}.ptx.gz", one.spec.name));
        // A file that holds the right text already is left alone: another version of the compressor may
        // write other bytes for the same text.
        if unpack(&path).is_ok_and(|text| text == one.ptx) {
            continue;
        }
        let mut encoder =
            GzBuilder::new().mtime(0).operating_system(255).write(Vec::new(), Compression::best());
        encoder.write_all(one.ptx.as_bytes())?;
        fs::write(&path, encoder.finish()?)
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    fs::write(dir().join("manifest.json"), serde_json::to_string_pretty(manifest)? + "\n")?;
    Ok(())
}

fn unpack(path: &Path) -> Result<String> {
    let mut text = String::new();
    let file = fs::File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
    GzDecoder::new(file)
        .read_to_string(&mut text)
        .with_context(|| format!("cannot unpack {}", path.display()))?;
    Ok(text)
}

fn committed() -> Result<Manifest> {
    let path = dir().join("manifest.json");
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    serde_json::from_str(&text).with_context(|| format!("cannot read {}", path.display()))
}

/// Checks, with no compiler, that the committed artifacts belong to the source and are whole.
///
/// # Errors
/// When they do not or are not.
pub fn check_hashes() -> Result<()> {
    let manifest = committed()?;
    let source = source_sha256(&root().join("kernels-gpu/src"))?;
    if manifest.source_sha256 != source || manifest.pipeline != PIPELINE_VERSION {
        bail!("kernels-gpu/src changed after the artifacts were built: run `cargo xtask build-kernels`");
    }
    for (name, kernel) in &manifest.kernels {
        let ptx = unpack(&dir().join(format!("{name}.ptx.gz")))?;
        if hex(&Sha256::digest(&ptx)) != kernel.sha256 {
            bail!("{name}.ptx.gz is not what the manifest says: run `cargo xtask build-kernels`");
        }
    }
    Ok(())
}

/// Compares a fresh build with the committed artifacts, byte for byte.
///
/// # Errors
/// When anything differs; the error lists what.
pub fn check(fresh: &Manifest, built: &[Built]) -> Result<()> {
    let manifest = committed()?;
    let mut faults = Vec::new();
    for one in built {
        match unpack(&dir().join(format!("{}.ptx.gz", one.spec.name))) {
            Ok(text) if text == one.ptx => {}
            Ok(_) => faults.push(format!(
                "{}: the committed PTX is not what this source compiles to",
                one.spec.name
            )),
            Err(error) => faults.push(format!("{error:#}")),
        }
    }
    if manifest.kernels != fresh.kernels {
        faults.push("manifest.json: its table of kernels is not that of the build".into());
    }
    let compilers = [&manifest, fresh].map(|m| format!("{} with LLVM {}", m.rustc, m.llvm));
    if !faults.is_empty() {
        let [then, now] = compilers;
        let note =
            if then == now { String::new() } else { format!("\nbuilt by {then}; at hand is {now}") };
        bail!("{}{note}\nrun `cargo xtask build-kernels`", faults.join("\n"));
    }
    Ok(())
}

/// SHA-256 over the files under `dir`: sorted relative paths with `/`, texts with `\n` line ends.
fn source_sha256(dir: &Path) -> Result<String> {
    let mut files = Vec::new();
    collect(dir, dir, &mut files)?;
    files.sort();
    let mut hash = Sha256::new();
    for (name, path) in files {
        let text =
            fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let text = text.replace("\r\n", "\n");
        hash.update(format!("{name}\n{}\n", text.len()));
        hash.update(text);
    }
    Ok(hex(&hash.finalize()))
}

fn collect(base: &Path, dir: &Path, files: &mut Vec<(String, PathBuf)>) -> Result<()> {
    for entry in fs::read_dir(dir).with_context(|| format!("cannot list {}", dir.display()))? {
        let path = entry?.path();
        if path.is_dir() {
            collect(base, &path, files)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let relative = path.strip_prefix(base)?.components();
            let words: Vec<_> =
                relative.map(|part| part.as_os_str().to_string_lossy().into_owned()).collect();
            files.push((words.join("/"), path));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_source_hash_ignores_line_ends_and_sees_names_and_texts() {
        let dir = std::env::temp_dir().join(format!("xtask-source-hash-{}", std::process::id()));
        let hash_of = |files: &[(&str, &str)]| {
            let _ = fs::remove_dir_all(&dir);
            for (name, text) in files {
                let path = dir.join(name);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text).unwrap();
            }
            source_sha256(&dir).unwrap()
        };
        let base = hash_of(&[("lib.rs", "a\nb\n"), ("tile/mod.rs", "c\n")]);
        assert_eq!(hash_of(&[("tile/mod.rs", "c\n"), ("lib.rs", "a\r\nb\r\n")]), base);
        assert_ne!(hash_of(&[("lib.rs", "a\nb\n"), ("tile/other.rs", "c\n")]), base);
        assert_ne!(hash_of(&[("lib.rs", "a\nb\nc\n"), ("tile/mod.rs", "")]), base);
        fs::remove_dir_all(&dir).unwrap();
    }
}
