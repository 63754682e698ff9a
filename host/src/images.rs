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

/// Where a driver gets the PTX of a kernel from. What is built in is decompressed, and edited for the
/// switches of a variant, once in a process; what replaces it is edited once for all clones.
#[derive(Clone)]
pub struct KernelImages {
    replacement: Option<Arc<Replacement>>,
    ptx_only: bool,
}

/// Texts with their switches set, by variant.
type Expanded = Mutex<HashMap<VariantKey, Arc<str>>>;

/// Those of the embedded kernels.
static EMBEDDED: LazyLock<Expanded> = LazyLock::new(Expanded::default);

/// A PTX text that replaces the embedded kernels of the same names.
struct Replacement {
    text: Arc<str>,
    entries: HashSet<String>,
    expanded: Expanded,
}

impl KernelImages {
    /// The kernels built into the library. With `FATTN_PTX_ONLY=1` in the environment, their PTX alone.
    pub fn embedded() -> Self {
        let said = std::env::var_os(PTX_ONLY);
        let ptx_only = said.is_some_and(|value| !value.is_empty() && value != "0");
        KernelImages { replacement: None, ptx_only }
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
        let replacement = Replacement { text: ptx.into(), entries, expanded: Expanded::default() };
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
        let replacement = self.replacement_of(variant.kernel.name);
        let expanded = replacement.map_or(&*EMBEDDED, |replacement| &replacement.expanded);
        // The map stays whole even if a thread panicked while it held the lock: entries are only added.
        let texts = || expanded.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(text) = texts().get(&variant.key()) {
            return Ok(text.clone());
        }
        // Without the lock, so that different kernels are expanded at once.
        let text = match replacement {
            Some(replacement) => replacement.text.clone(),
            None => Store::embedded().text(variant.kernel.name)?.into(),
        };
        let text = specialize::specialized(&text, variant)?.map_or(text, Arc::from);
        Ok(texts().entry(variant.key()).or_insert(text).clone())
    }

    /// What stands in place of an embedded kernel, if it was replaced.
    fn replacement_of(&self, kernel: &str) -> Option<&Replacement> {
        self.replacement.as_deref().filter(|replacement| replacement.entries.contains(kernel))
    }

    /// The kernel, assembled for exactly this compute capability by NVIDIA's ptxas, if it is built in so:
    /// some kernels are, with no switch on. Never one that was replaced, and none if only PTX is wanted.
    pub fn assembled(&self, variant: KernelVariant, compute_capability: (u32, u32)) -> Option<Vec<u8>> {
        let kernel = variant.kernel;
        let is_replaced = self.replacement_of(kernel.name).is_some();
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
    entries(ptx).map(|(_, name)| name)
}

/// Where the lines of a PTX text begin that have an `.entry` outside of a comment, and the name behind it.
fn entries(ptx: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut searched = 0;
    ptx.match_indices(".entry ").filter_map(move |(at, entry)| {
        let line = ptx[..at].rfind('\n').map_or(0, |end| end + 1);
        if line < searched || ptx[line..at].trim_start().starts_with("//") {
            return None;
        }
        searched = at;
        let rest = ptx[at + entry.len()..].trim_start_matches([' ', '\t']);
        let end =
            rest.find(|c: char| !(c.is_ascii_alphanumeric() || "_$%".contains(c))).unwrap_or(rest.len());
        (end > 0).then(|| (line, &rest[..end]))
    })
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
        let odd =
            ".entry\n.entry (\n} .weak .entry \t a$1 .entry b\n  // .entry c // .entry d\n.entry e";
        let found: Vec<_> = entries(odd).collect();
        assert_eq!(found, [(16, "a$1"), (odd.len() - 8, "e")]);
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

    /// Parsed modules are kept by their text: who tries many replacements would parse all other kernels anew.
    #[test]
    fn kernels_that_are_not_replaced_have_the_text_of_all_others() {
        let other = kernel("forward_f16_d64_sm80");
        let embedded = KernelImages::embedded().get(other).unwrap();
        for ptx in [PTX, ".entry second(\n"] {
            let images = KernelImages::with_override(ptx).unwrap();
            assert!(Arc::ptr_eq(&images.get(other).unwrap(), &embedded));
        }
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
            // Lines that only a switch has are comments without it.
            let lines = [&off, &on].map(|text| text.lines().count());
            assert!(*off != *on && lines[0] == lines[1], "{}", kernel.name);
        }
    }
}
