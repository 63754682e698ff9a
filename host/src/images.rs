//! The compiled kernels: PTX text, built into the library compressed, or given by the caller instead; and
//! what is built in of them assembled.

mod specialize;
mod store;

use crate::error::{Error, Result};
use kernels_gpu::abi::{Arch, KERNELS, KernelVariant, VariantKey};
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use store::Store;

/// Set to anything but `0`, drivers assemble PTX, even where a kernel is built in assembled.
const PTX_ONLY: &str = "FATTN_PTX_ONLY";

/// Where a driver gets the PTX of a kernel from. Clones share what was decompressed, and what was edited for
/// the switches of a variant.
#[derive(Clone)]
pub struct KernelImages {
    replacement: Option<Arc<Replacement>>,
    texts: Arc<Mutex<Expanded>>,
    ptx_only: bool,
}

/// Texts that were decompressed, by variant.
type Expanded = HashMap<VariantKey, Arc<str>>;

/// A PTX text that replaces the embedded kernels of the same names.
struct Replacement {
    text: Arc<str>,
    entries: HashSet<String>,
}

impl KernelImages {
    /// The kernels built into the library. With `FATTN_PTX_ONLY=1` in the environment, their PTX alone.
    pub fn embedded() -> Self {
        // Programs open many devices: what is built in is decompressed once for all of them.
        static EXPANDED: LazyLock<Arc<Mutex<Expanded>>> = LazyLock::new(Arc::default);
        let said = std::env::var_os(PTX_ONLY);
        let ptx_only = said.is_some_and(|value| !value.is_empty() && value != "0");
        KernelImages { replacement: None, texts: EXPANDED.clone(), ptx_only }
    }

    /// The same, with PTX alone or not, whatever the environment says.
    #[must_use]
    pub fn with_ptx_only(self, ptx_only: bool) -> Self {
        KernelImages { ptx_only, ..self }
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
        let replacement = Some(Arc::new(Replacement { text: ptx.into(), entries }));
        Ok(KernelImages { replacement, texts: Arc::default(), ..KernelImages::embedded() })
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
        let texts = || self.texts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(text) = texts().get(&variant.key()) {
            return Ok(text.clone());
        }
        // Without the lock, so that different kernels are expanded at once.
        let kernel = variant.kernel.name;
        let text = match &self.replacement {
            Some(replacement) if replacement.entries.contains(kernel) => replacement.text.clone(),
            _ => Store::embedded().text(kernel)?.into(),
        };
        let text = specialize::specialized(&text, variant)?.map_or(text, Arc::from);
        Ok(texts().entry(variant.key()).or_insert(text).clone())
    }

    /// The kernel, assembled for exactly this compute capability by NVIDIA's ptxas, if it is built in so:
    /// some kernels are, with no switch on. Never one that was replaced, and none if only PTX is wanted.
    pub fn assembled(&self, variant: KernelVariant, compute_capability: (u32, u32)) -> Option<Vec<u8>> {
        let kernel = variant.kernel;
        let is_replaced =
            self.replacement.as_ref().is_some_and(|replaced| replaced.entries.contains(kernel.name));
        if self.ptx_only || is_replaced || !variant.switches.is_empty() {
            return None;
        }
        let (major, minor) = compute_capability;
        // Hopper's own instructions are in a target of its own, for that device alone.
        let device = match kernel.arch {
            Arch::Sm80 => format!("sm_{major}{minor}"),
            Arch::Sm90a => format!("sm_{major}{minor}a"),
        };
        Store::embedded().assembled(kernel.name, &device)
    }

    /// Names of the kernels that are there, sorted.
    pub fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = Store::embedded().names().map(str::to_owned).collect();
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
            .field("embedded", &Store::embedded().names().count())
            .field("replaced", &replaced)
            .field("ptx_only", &self.ptx_only)
            .finish()
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
    use kernels_gpu::abi::{Family, Switch, Switches};

    const PTX: &str =
        "// .entry not_this\n.version 8.0\n.visible .entry forward_bf16_d64_sm80(\n.entry second\n(";

    #[test]
    fn entries_are_found_and_comments_are_not() {
        assert_eq!(entry_names(PTX).collect::<Vec<_>>(), ["forward_bf16_d64_sm80", "second"]);
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

    #[test]
    fn assembled_kernels_are_for_their_device_without_switches_and_never_replaced() {
        let images = KernelImages::embedded().with_ptx_only(false);
        let (hopper, older) = (kernel("forward_bf16_d128_sm90a"), kernel("forward_bf16_d64_sm80"));
        let elf = |images: &KernelImages, variant, device| {
            images.assembled(variant, device).map(|bytes| bytes.starts_with(b"\x7fELF"))
        };
        assert_eq!(elf(&images, hopper, (9, 0)), Some(true));
        assert_eq!([(8, 0), (9, 0)].map(|device| elf(&images, older, device)), [Some(true); 2]);
        assert_ne!(images.assembled(older, (8, 0)), images.assembled(older, (9, 0)));
        assert_eq!([(8, 0), (8, 9), (10, 0)].map(|device| elf(&images, hopper, device)), [None; 3]);
        assert_eq!([(8, 6), (12, 0)].map(|device| elf(&images, older, device)), [None; 2]);
        assert_eq!(elf(&images, kernel("forward_f32_d64_sm80"), (8, 0)), None);
        let capped = KernelVariant { switches: Switches::NONE.with(Switch::Softcap), ..hopper };
        assert_eq!(elf(&images, capped, (9, 0)), None);
        assert_eq!(elf(&images.with_ptx_only(true), hopper, (9, 0)), None);
        let replaced = KernelImages::with_override(PTX).unwrap().with_ptx_only(false);
        assert_eq!([(8, 0), (9, 0)].map(|device| elf(&replaced, older, device)), [None; 2]);
        assert_eq!(elf(&replaced, hopper, (9, 0)), Some(true));
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
