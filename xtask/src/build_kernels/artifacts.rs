//! Stage 7: the committed kernels, in packs, and the manifest that ties them to their source.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use kernels_gpu::abi::KERNELS;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::compiler::Compiler;
use super::cubins::{self, Cubin};
use super::packs::{self, Packed};
use super::{Built, hex, ptx, shipped_cubins};
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
    /// The full version of the ptxas that assembled kernels are made with.
    pub ptxas: String,
    /// Every kernel, by name.
    pub kernels: BTreeMap<String, Kernel>,
    /// Every assembled kernel, by [`cubins::name`].
    pub cubins: BTreeMap<String, Cubin>,
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
    let cubins = built.iter().flat_map(|one| {
        let described =
            |(name, cubin): (&String, &Vec<u8>)| (name.clone(), cubins::described(cubin, &one.ptx));
        one.cubins.iter().map(described)
    });
    Ok(Manifest {
        pipeline: PIPELINE_VERSION,
        source_sha256: source_sha256(&root().join("kernels-gpu/src"))?,
        rustc: compiler.version.clone(),
        llvm: compiler.llvm.clone(),
        ptxas: super::ptxas::PINNED.to_owned(),
        kernels: built.iter().map(|one| (one.spec.name.to_owned(), kernel(one))).collect(),
        cubins: cubins.collect(),
    })
}

/// Writes packs and the manifest. Where nothing was assembled, for want of the pinned ptxas, committed
/// kernels stay that were assembled from the same code; the others go, and drivers assemble the PTX.
///
/// # Errors
/// When a file cannot be written.
pub fn write(mut manifest: Manifest, built: &[Built], has_ptxas: bool) -> Result<()> {
    let texts = built.iter().map(|one| (one.spec.name.to_owned(), one.ptx.clone())).collect();
    let mut packed = Packed { texts, cubins: BTreeMap::new() };
    if has_ptxas {
        packed.cubins = built.iter().flat_map(|one| one.cubins.clone()).collect();
    } else if let (Ok(before), Ok(held)) = (committed(), packs::read(&dir())) {
        let wanted: BTreeMap<String, String> = expected_cubins(built).collect();
        for (name, cubin) in before.cubins {
            if wanted.get(&name) == Some(&cubin.code_sha256)
                && let Some(bytes) = held.cubins.get(&name)
            {
                packed.cubins.insert(name.clone(), bytes.clone());
                manifest.cubins.insert(name, cubin);
            }
        }
        let gone = wanted.len() - packed.cubins.len();
        if gone > 0 {
            println!("{gone} kernels ship without assembled code: there is no ptxas {}", manifest.ptxas);
        }
    }
    packs::write(&dir(), &packed)?;
    fs::write(dir().join("manifest.json"), serde_json::to_string_pretty(&manifest)? + "\n")?;
    Ok(())
}

/// The assembled kernels that there should be, and the hash of the code of each.
fn expected_cubins(built: &[Built]) -> impl Iterator<Item = (String, String)> {
    built.iter().flat_map(|one| {
        let names = shipped_cubins(one.spec);
        let code = if names.is_empty() { String::new() } else { cubins::code_sha256(&one.ptx) };
        names.into_iter().map(move |name| (name, code.clone()))
    })
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
    let faults = hash_faults(&manifest, &packs::read(&dir())?);
    if !faults.is_empty() {
        bail!("{}\nrun `cargo xtask build-kernels`", faults.join("\n"));
    }
    Ok(())
}

/// What the packs hold that the manifest does not say, and the other way round.
fn hash_faults(manifest: &Manifest, packed: &Packed) -> Vec<String> {
    let found = packed.texts.iter().map(|(name, text)| (name.as_str(), hex(&Sha256::digest(text))));
    let said = manifest.kernels.iter().map(|(name, kernel)| (name.as_str(), kernel.sha256.as_str()));
    let mut faults = differences(found.collect(), said.collect());
    let found = packed.cubins.iter().map(|(name, cubin)| (name.as_str(), hex(&Sha256::digest(cubin))));
    let said = manifest.cubins.iter().map(|(name, cubin)| (name.as_str(), cubin.sha256.as_str()));
    faults.extend(differences(found.collect(), said.collect()));
    for (name, cubin) in &manifest.cubins {
        let text = name.split('.').next().and_then(|kernel| packed.texts.get(kernel));
        if text.is_none_or(|text| cubins::code_sha256(text) != cubin.code_sha256) {
            faults.push(format!("{name} was assembled from other PTX than is packed"));
        }
    }
    faults
}

fn differences(found: BTreeMap<&str, String>, said: BTreeMap<&str, &str>) -> Vec<String> {
    let unsaid = found.keys().filter(|name| !said.contains_key(**name));
    let mut faults: Vec<String> =
        unsaid.map(|name| format!("{name} is in a pack, but not in the manifest")).collect();
    for (name, said) in said {
        match found.get(name) {
            None => faults.push(format!("{name} is in no pack")),
            Some(found) if found != said => faults.push(format!("{name} is not what the manifest says")),
            Some(_) => {}
        }
    }
    faults
}

/// Compares a fresh build, of all kernels or of some, with the committed artifacts, byte for byte; assembled
/// kernels where the pinned ptxas is at hand, the code that they were assembled from everywhere.
///
/// # Errors
/// When anything differs; the error lists what.
pub fn check(fresh: &Manifest, built: &[Built], has_ptxas: bool) -> Result<()> {
    let mut manifest = committed()?;
    // Nothing is said of kernels that there are and that were not built.
    let was_left_out = |name: &str| {
        let kernel = name.split('.').next();
        KERNELS.iter().any(|spec| Some(spec.name) == kernel)
            && built.iter().all(|one| Some(one.spec.name) != kernel)
    };
    manifest.kernels.retain(|name, _| !was_left_out(name));
    manifest.cubins.retain(|name, _| !was_left_out(name));
    let packed = packs::read(&dir())?;
    let mut faults = Vec::new();
    for one in built {
        let name = one.spec.name;
        match packed.texts.get(name) {
            Some(text) if *text == one.ptx => {}
            Some(_) => {
                faults.push(format!("{name}: the committed PTX is not what this source compiles to"))
            }
            None => faults.push(format!("{name}: it is in no pack")),
        }
        for (cubin, bytes) in &one.cubins {
            if packed.cubins.get(cubin) != Some(bytes) {
                faults.push(format!("{cubin}: the committed code is not what ptxas makes of the PTX"));
            }
        }
    }
    let expected: BTreeMap<String, String> = expected_cubins(built).collect();
    let code: BTreeMap<String, String> =
        manifest.cubins.iter().map(|(name, cubin)| (name.clone(), cubin.code_sha256.clone())).collect();
    if code != expected {
        faults.push("manifest.json: assembled kernels are missing, or not from this code".into());
    }
    if manifest.kernels != fresh.kernels || (has_ptxas && manifest.cubins != fresh.cubins) {
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
    fn what_is_packed_is_what_the_manifest_says_and_assembled_from_it() {
        let text = "\t.loc\t1 2 3\n\tret;\n".to_owned();
        let kernel = Kernel {
            arch: "sm_80".into(),
            sha256: hex(&Sha256::digest(&text)),
            bytes: text.len(),
            instructions: 1,
        };
        let manifest = Manifest {
            pipeline: PIPELINE_VERSION,
            source_sha256: String::new(),
            rustc: String::new(),
            llvm: String::new(),
            ptxas: String::new(),
            kernels: [("k".to_owned(), kernel)].into(),
            cubins: [("k.sm_80".to_owned(), cubins::described(b"code", &text))].into(),
        };
        let faults = |text: &str, cubin: &[u8]| {
            let texts = [("k".to_owned(), text.to_owned())].into();
            let cubins = [("k.sm_80".to_owned(), cubin.to_vec())].into();
            hash_faults(&manifest, &Packed { texts, cubins })
        };
        assert_eq!(faults(&text, b"code"), Vec::<String>::new());
        assert_eq!(faults(&text, b"other"), ["k.sm_80 is not what the manifest says"]);
        let other =
            ["k is not what the manifest says", "k.sm_80 was assembled from other PTX than is packed"];
        assert_eq!(faults("\tadd;\n", b"code"), other);
        assert_eq!(hash_faults(&manifest, &Packed::default()).len(), 3);
    }

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
