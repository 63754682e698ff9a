//! The files of `kernels-gpu/artifacts`: a pack of texts for each family and target, and one of assembled
//! kernels.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use kernel_archive::{Archive, Texts, pack, pack_texts};

/// Element types in names.
const ELEMENTS: [&str; 3] = ["bf16", "f16", "f32"];

/// The endings of the two kinds of pack.
const TEXTS: &str = ".ptx.pack";
const CUBINS: &str = ".cubin.pack";

/// Members by name.
pub type Members = BTreeMap<String, Vec<u8>>;

/// What stands in the packs of a folder.
#[derive(Default)]
pub struct Packed {
    /// PTX, by kernel.
    pub texts: BTreeMap<String, String>,
    /// Assembled kernels, by [`super::cubins::name`].
    pub cubins: Members,
}

/// Reads all packs of a folder.
///
/// # Errors
/// When one cannot be read, or two hold the same kernel.
pub fn read(dir: &Path) -> Result<Packed> {
    let mut packed = Packed::default();
    for path in files(dir)? {
        let bytes = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        add(&path, &bytes, &mut packed).with_context(|| format!("cannot unpack {}", path.display()))?;
    }
    Ok(packed)
}

/// The packs of a folder, sorted.
fn files(dir: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(dir).with_context(|| format!("cannot list {}", dir.display()))?;
    let mut paths = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    paths.retain(|path| is_pack(path, TEXTS) || is_pack(path, CUBINS));
    paths.sort();
    Ok(paths)
}

fn is_pack(path: &Path, ending: &str) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().ends_with(ending))
}

fn add(path: &Path, bytes: &[u8], packed: &mut Packed) -> Result<()> {
    let names: Vec<String> = if is_pack(path, TEXTS) {
        let texts = Texts::open(bytes)?;
        for name in texts.names() {
            let text = texts.get(name)?.context("a name without a text")?;
            if packed.texts.insert(name.to_owned(), text).is_some() {
                bail!("{name} is in two packs");
            }
        }
        return Ok(());
    } else {
        Archive::open(bytes)?.names().map(str::to_owned).collect()
    };
    let archive = Archive::open(bytes)?;
    for name in names {
        let member = archive.get(&name)?.context("a name without a member")?;
        if packed.cubins.insert(name.clone(), member).is_some() {
            bail!("{name} is in two packs");
        }
    }
    Ok(())
}

/// Writes packs with these texts and assembled kernels, and removes all others. A pack that holds the same
/// already is left alone: another version of the compressor may write other bytes.
///
/// # Errors
/// When a file cannot be written.
pub fn write(dir: &Path, packed: &Packed) -> Result<()> {
    fs::create_dir_all(dir)?;
    let held = |path: &Path| -> Result<Packed> {
        let mut held = Packed::default();
        add(path, &fs::read(path)?, &mut held)?;
        Ok(held)
    };
    let mut wanted = Vec::new();
    for (family, members) in families(&packed.texts) {
        let path = dir.join(format!("{family}{TEXTS}"));
        if !held(&path).is_ok_and(|held| held.texts.iter().eq(members.iter().copied())) {
            fs::write(&path, pack_texts(&grouped(&members))?)?;
        }
        wanted.push(path);
    }
    for (family, members) in families(&packed.cubins) {
        let path = dir.join(format!("{family}{CUBINS}"));
        if !held(&path).is_ok_and(|held| held.cubins.iter().eq(members.iter().copied())) {
            fs::write(&path, pack(&grouped(&members))?)?;
        }
        wanted.push(path);
    }
    for path in files(dir)?.into_iter().filter(|path| !wanted.contains(path)) {
        fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))?;
    }
    Ok(())
}

/// The words of a kernel's name before its element type, the type, and the words behind it.
fn parsed(name: &str) -> (String, Option<&str>, String) {
    let words: Vec<&str> = name.split('_').collect();
    match words.iter().position(|word| ELEMENTS.contains(word)) {
        Some(place) => (words[..place].join("_"), Some(words[place]), words[place + 1..].join("_")),
        None => (name.to_owned(), None, String::new()),
    }
}

/// What the packs of a kernel are called: its family and target, `backward_convert_sm80`.
fn family(kernel: &str) -> String {
    match parsed(kernel) {
        (family, Some(_), _) => format!("{family}_{}", kernel.rsplit('_').next().unwrap_or_default()),
        // The whole name, whose target is its end.
        (family, None, _) => family,
    }
}

/// Members by [`family`].
fn families<T>(members: &BTreeMap<String, T>) -> BTreeMap<String, Vec<(&String, &T)>> {
    let mut families: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for (name, member) in members {
        // An assembled kernel has its device behind a dot.
        let kernel = name.split('.').next().unwrap_or_default();
        families.entry(family(kernel)).or_default().push((name, member));
    }
    families
}

/// Members of a family in groups of kernels that differ in their 16-bit element type alone, which are most
/// alike.
fn grouped<'m, T>(members: &[(&String, &'m T)]) -> Vec<Vec<(String, &'m T)>> {
    let mut groups: BTreeMap<(bool, String), Vec<(String, &T)>> = BTreeMap::new();
    for &(name, member) in members {
        let (_, element, rest) = parsed(name);
        groups.entry((element == Some("f32"), rest)).or_default().push((name.clone(), member));
    }
    groups.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packed(texts: &[&str], cubins: &[&str]) -> Packed {
        Packed {
            texts: texts.iter().map(|name| ((*name).to_owned(), format!(".entry {name}\n"))).collect(),
            cubins: cubins.iter().map(|name| ((*name).to_owned(), name.as_bytes().to_vec())).collect(),
        }
    }

    #[test]
    fn a_kernel_shares_a_pack_with_its_family_and_a_block_with_its_twin() {
        let names = [
            "forward_f32_d64_sm80",
            "forward_bf16_d64_sm80",
            "forward_f16_d64_sm80",
            "forward_bf16_d32_sm80",
        ];
        let texts = packed(&names, &["forward_combine_f16_q1_sm80.sm_90"]);
        let families = families(&texts.texts);
        assert!(families.keys().eq(["forward_sm80"]));
        let groups = grouped(&families["forward_sm80"]);
        let names: Vec<Vec<&str>> =
            groups.iter().map(|group| group.iter().map(|(name, _)| &**name).collect()).collect();
        assert_eq!(
            names,
            [
                vec!["forward_bf16_d32_sm80"],
                vec!["forward_bf16_d64_sm80", "forward_f16_d64_sm80"],
                vec!["forward_f32_d64_sm80"]
            ]
        );
        assert!(super::families(&texts.cubins).keys().eq(["forward_combine_sm80"]));
    }

    /// Without an element type in its name, a kernel is a family.
    #[test]
    fn packs_are_read_as_written_and_those_of_old_families_go() {
        let dir = tempfile();
        let first = packed(&["forward_bf16_d64_sm80", "other_sm80"], &["forward_bf16_d64_sm80.sm_90"]);
        write(&dir, &first).unwrap();
        let read_back = read(&dir).unwrap();
        assert_eq!((read_back.texts, read_back.cubins), (first.texts, first.cubins));
        let names = |dir: &Path| -> Vec<String> {
            let name = |path: &PathBuf| path.file_name().unwrap().to_string_lossy().into_owned();
            files(dir).unwrap().iter().map(name).collect()
        };
        assert_eq!(
            names(&dir),
            ["forward_sm80.cubin.pack", "forward_sm80.ptx.pack", "other_sm80.ptx.pack"]
        );
        let kept = fs::metadata(dir.join("forward_sm80.ptx.pack")).unwrap().modified().unwrap();
        write(&dir, &packed(&["forward_bf16_d64_sm80"], &[])).unwrap();
        assert_eq!(names(&dir), ["forward_sm80.ptx.pack"]);
        assert_eq!(fs::metadata(dir.join("forward_sm80.ptx.pack")).unwrap().modified().unwrap(), kept);
        fs::write(dir.join("x.ptx.pack"), "nonsense").unwrap();
        assert!(read(&dir).is_err());
        fs::remove_dir_all(&dir).unwrap();
    }

    fn tempfile() -> PathBuf {
        let dir = std::env::temp_dir().join(format!("xtask-packs-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        dir
    }
}
