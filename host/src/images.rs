//! The compiled kernels: PTX text, built into the library compressed, or given by the caller instead.

mod specialize;

use crate::error::{Error, Result};
use flate2::read::GzDecoder;
use kernels_gpu::abi::{KERNELS, KernelVariant, VariantKey};
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::io::Read as _;
use std::sync::{Arc, Mutex, PoisonError};

/// Kernel name and gzip-compressed PTX, sorted by name; written by the build script.
static EMBEDDED: &[(&str, &[u8])] = include!(concat!(env!("OUT_DIR"), "/images_table.rs"));

/// Where a driver gets the PTX of a kernel from. Clones share what was decompressed, and what was edited for
/// the switches of a variant.
#[derive(Clone)]
pub struct KernelImages {
    replacement: Option<Arc<Replacement>>,
    texts: Arc<Mutex<HashMap<VariantKey, Arc<str>>>>,
}

/// A PTX text that replaces the embedded kernels of the same names.
struct Replacement {
    text: Arc<str>,
    entries: HashSet<String>,
}

impl KernelImages {
    /// The kernels built into the library.
    pub fn embedded() -> Self {
        KernelImages { replacement: None, texts: Arc::default() }
    }

    /// As [`KernelImages::embedded`], except that every kernel with an `.entry` in `ptx` comes from
    /// there.
    ///
    /// # Errors
    /// [`Error::KernelImageCorrupt`] if the text has no `.entry` at all.
    pub fn with_override(ptx: &str) -> Result<Self> {
        let entries: HashSet<String> = entry_names(ptx).map(str::to_owned).collect();
        if entries.is_empty() {
            let reason = "no .entry in the text".to_owned();
            return Err(Error::KernelImageCorrupt { kernel: "override".into(), reason });
        }
        let replacement = Replacement { text: ptx.into(), entries };
        Ok(KernelImages { replacement: Some(Arc::new(replacement)), ..KernelImages::embedded() })
    }

    /// As [`KernelImages::with_override`], of a text that replaces at least one kernel.
    ///
    /// # Errors
    /// [`Error::NoKernelReplaced`], or as [`KernelImages::with_override`].
    pub fn replacing(ptx: &str) -> Result<Self> {
        let is_known = |entry: &str| KERNELS.iter().any(|kernel| kernel.name == entry);
        let images = KernelImages::with_override(ptx)?;
        if entry_names(ptx).any(is_known) {
            return Ok(images);
        }
        Err(Error::NoKernelReplaced { entries: entry_names(ptx).map(str::to_owned).collect() })
    }

    /// The PTX text that holds the kernel, with its switches set: the same `Arc` at every call.
    ///
    /// # Errors
    /// [`Error::KernelImageMissing`] if it was not built in, [`Error::KernelImageCorrupt`] if it cannot
    /// be read, [`Error::SwitchMissing`] if it has no marker of a switch that is on.
    pub fn get(&self, variant: KernelVariant) -> Result<Arc<str>> {
        // The map stays whole even if a thread panicked while it held the lock: entries are only added.
        let mut texts = self.texts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(text) = texts.get(&variant.key()) {
            return Ok(text.clone());
        }
        let kernel = variant.kernel.name;
        let text = match &self.replacement {
            Some(replacement) if replacement.entries.contains(kernel) => replacement.text.clone(),
            _ => decompress(EMBEDDED, kernel)?.into(),
        };
        let text = specialize::specialized(&text, variant)?.map_or(text, Arc::from);
        texts.insert(variant.key(), text.clone());
        Ok(text)
    }

    /// Names of the kernels that are there, sorted.
    pub fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = EMBEDDED.iter().map(|(name, _)| (*name).to_owned()).collect();
        names
            .extend(self.replacement.iter().flat_map(|replacement| replacement.entries.iter().cloned()));
        names.sort();
        names.dedup();
        names
    }
}

impl Default for KernelImages {
    fn default() -> Self {
        KernelImages::embedded()
    }
}

impl fmt::Debug for KernelImages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let replaced = self.replacement.as_ref().map(|replacement| &replacement.entries);
        f.debug_struct("KernelImages")
            .field("embedded", &EMBEDDED.len())
            .field("replaced", &replaced)
            .finish()
    }
}

/// The text of one kernel of `table`, which must start like PTX and hold the kernel's entry.
fn decompress(table: &[(&str, &[u8])], kernel: &str) -> Result<String> {
    let Ok(index) = table.binary_search_by_key(&kernel, |(name, _)| name) else {
        return Err(Error::KernelImageMissing { kernel: kernel.to_owned() });
    };
    let corrupt = |reason: String| Error::KernelImageCorrupt { kernel: kernel.to_owned(), reason };
    let mut text = String::new();
    GzDecoder::new(table[index].1)
        .read_to_string(&mut text)
        .map_err(|error| corrupt(error.to_string()))?;
    if entry_names(&text).any(|name| name == kernel) {
        Ok(text)
    } else {
        Err(corrupt(format!("no .entry {kernel} in the text")))
    }
}

/// The names after `.entry` in a PTX text.
fn entry_names(ptx: &str) -> impl Iterator<Item = &str> {
    ptx.lines().filter_map(entry_name)
}

/// The name after `.entry` in a line of PTX.
fn entry_name(line: &str) -> Option<&str> {
    if line.trim_start().starts_with("//") {
        return None;
    }
    let rest = line.split_once(".entry ")?.1.trim_start();
    let end =
        rest.find(|c: char| !(c.is_ascii_alphanumeric() || "_$%".contains(c))).unwrap_or(rest.len());
    (end > 0).then(|| &rest[..end])
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::{Compression, write::GzEncoder};
    use kernels_gpu::abi::{Family, Switch, Switches};
    use std::io::Write as _;

    const PTX: &str =
        "// .entry not_this\n.version 8.0\n.visible .entry forward_bf16_d64_sm80(\n.entry second\n(";

    fn gzip(text: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(text).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn entries_are_found_and_comments_are_not() {
        assert_eq!(entry_names(PTX).collect::<Vec<_>>(), ["forward_bf16_d64_sm80", "second"]);
    }

    #[test]
    fn an_image_that_is_missing_cut_or_of_another_kernel_is_an_error() {
        let (whole, other) = (gzip(b".entry a("), gzip(b".entry b("));
        let table: &[(&str, &[u8])] = &[("a", &whole), ("cut", &whole[..12]), ("other", &other)];
        assert_eq!(decompress(table, "a").unwrap(), ".entry a(");
        let text = |kernel| decompress(table, kernel).unwrap_err().to_string();
        assert_eq!(
            text("zzz"),
            "kernel zzz: no PTX is built in; run `cargo xtask build-kernels` and build again"
        );
        assert!(text("cut").starts_with("kernel cut: the PTX cannot be read: "), "{}", text("cut"));
        assert_eq!(text("other"), "kernel other: the PTX cannot be read: no .entry other in the text");
    }

    fn kernel(name: &str) -> KernelVariant {
        KERNELS.iter().find(|spec| spec.name == name).unwrap().into()
    }

    #[test]
    fn an_override_replaces_the_kernels_it_holds_and_no_others() {
        let images = KernelImages::with_override(PTX).unwrap();
        assert_eq!(&*images.get(kernel("forward_bf16_d64_sm80")).unwrap(), PTX);
        let other = kernel("forward_f16_d64_sm80");
        assert!(images.get(other).map_or(true, |text| &*text != PTX));
        assert!(images.names().contains(&"second".to_owned()));
        assert!(KernelImages::replacing(PTX).is_ok());
        assert_eq!(
            KernelImages::replacing(".entry second(\n.entry third(").unwrap_err().to_string(),
            "kernels: expected an .entry with the name of a kernel of the library, got second, third"
        );
        assert_eq!(
            KernelImages::with_override("").unwrap_err().to_string(),
            "kernel override: the PTX cannot be read: no .entry in the text"
        );
    }

    #[test]
    fn an_override_goes_through_the_same_edit() {
        let name = "forward_bf16_d64_sm80";
        let off = kernel(name);
        let on = KernelVariant { switches: Switches::NONE.with(Switch::Softcap), ..off };
        let text = format!(".entry {name}(\n\tmov.b32 %r1, 0; // specialize softcap\n");
        let images = KernelImages::with_override(&text).unwrap();
        assert_eq!(*images.get(on).unwrap(), *text.replace(" 0;", " 1;"));
        assert_eq!(*images.get(off).unwrap(), *text);
        assert!(Arc::ptr_eq(&images.get(on).unwrap(), &images.clone().get(on).unwrap()));
        // Without a marker it has the text of neither.
        let images = KernelImages::with_override(PTX).unwrap();
        let missing = Error::SwitchMissing { kernel: name.to_owned(), switch: "softcap" };
        assert_eq!(images.get(on), Err(missing));
        assert!(images.get(off).is_ok());
    }

    /// Kernels whose text lacks a marker that their row has would fail at their first use with it.
    #[test]
    fn every_forward_kernel_that_is_built_in_has_its_switches() {
        let images = KernelImages::embedded();
        let forward = KERNELS.iter().filter(|kernel| kernel.family == Family::Forward);
        for kernel in forward.filter(|kernel| images.names().iter().any(|name| name == kernel.name)) {
            let all = KernelVariant { kernel, switches: kernel.switches };
            let (off, on) = (images.get(kernel.into()).unwrap(), images.get(all).unwrap());
            assert!(*off != *on && off.len() == on.len(), "{}", kernel.name);
        }
    }
}
