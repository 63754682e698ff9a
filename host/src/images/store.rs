//! The packs of kernels that are built into the library: texts, and what ships assembled.

use super::entry_names;
use crate::error::{Error, Result};
use kernel_archive::{Archive, Texts};
use kernels_gpu::packs::PACKS;
use std::collections::HashMap;
use std::sync::LazyLock;

/// The endings of the two kinds of pack.
const TEXTS: &str = ".ptx.pack";
const ASSEMBLED: &str = ".cubin.pack";

/// Packs whose headers have been read: what is in them is expanded when it is asked for.
#[derive(Default)]
pub(super) struct Store {
    packs: Vec<Texts<'static>>,
    /// Which pack has the text of a kernel.
    texts: HashMap<String, usize>,
    assembled: Vec<Archive<'static>>,
    /// What is wrong with packs that cannot be read.
    broken: Vec<String>,
}

impl Store {
    /// Those built in.
    pub fn embedded() -> &'static Store {
        static STORE: LazyLock<Store> = LazyLock::new(|| Store::new(PACKS));
        &STORE
    }

    /// Reads the headers of packs, each a file name and its contents.
    pub fn new(files: &[(&str, &'static [u8])]) -> Self {
        let mut store = Store::default();
        for &(name, bytes) in files {
            if name.ends_with(TEXTS) {
                match Texts::open(bytes) {
                    Ok(pack) => {
                        let place = store.packs.len();
                        store.texts.extend(pack.names().map(|kernel| (kernel.to_owned(), place)));
                        store.packs.push(pack);
                    }
                    Err(error) => store.broken.push(format!("{name}: {error}")),
                }
            } else if name.ends_with(ASSEMBLED) {
                match Archive::open(bytes) {
                    Ok(pack) => store.assembled.push(pack),
                    Err(error) => store.broken.push(format!("{name}: {error}")),
                }
            }
        }
        store
    }

    /// The names of the kernels whose text is there.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.texts.keys().map(String::as_str)
    }

    /// The text of a kernel, which must hold the kernel's entry.
    pub fn text(&self, kernel: &str) -> Result<String> {
        let corrupt = |reason: String| Error::KernelImageCorrupt { kernel: kernel.to_owned(), reason };
        let Some(&pack) = self.texts.get(kernel) else {
            return Err(match self.broken.first() {
                Some(reason) => corrupt(reason.clone()),
                None => Error::KernelImageMissing { kernel: kernel.to_owned() },
            });
        };
        let text = self.packs[pack].get(kernel).map_err(|error| corrupt(error.to_string()))?;
        let text = text.ok_or_else(|| Error::KernelImageMissing { kernel: kernel.to_owned() })?;
        if entry_names(&text).any(|name| name == kernel) {
            Ok(text)
        } else {
            Err(corrupt(format!("no .entry {kernel} in the text")))
        }
    }

    /// A kernel assembled for a device, `sm_90a`; `None` if there is none, or it cannot be read: the text is
    /// there.
    pub fn assembled(&self, kernel: &str, device: &str) -> Option<Vec<u8>> {
        let name = format!("{kernel}.{device}");
        self.assembled.iter().find_map(|pack| pack.get(&name).ok().flatten())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernel_archive::{pack, pack_texts};

    fn leaked(bytes: Vec<u8>) -> &'static [u8] {
        Box::leak(bytes.into_boxed_slice())
    }

    fn texts(named: &[(&str, &str)]) -> &'static [u8] {
        let group = named.iter().map(|(name, text)| ((*name).to_owned(), *text)).collect();
        leaked(pack_texts(&[group]).unwrap())
    }

    #[test]
    fn an_image_that_is_missing_cut_or_of_another_kernel_is_an_error() {
        let whole = texts(&[("a", ".entry a("), ("other", ".entry b(")]);
        let store = Store::new(&[("x.ptx.pack", whole)]);
        assert_eq!(store.text("a").unwrap(), ".entry a(");
        let failed = |store: &Store, kernel| store.text(kernel).unwrap_err().to_string();
        assert_eq!(
            failed(&store, "zzz"),
            "kernel zzz: no PTX is built in; run `cargo xtask build-kernels` and build again"
        );
        let other = "kernel other: the PTX cannot be read: no .entry other in the text";
        assert_eq!(failed(&store, "other"), other);
        let store = Store::new(&[("x.ptx.pack", &whole[..whole.len() - 3]), ("README", b"")]);
        assert_eq!(
            failed(&store, "a"),
            "kernel a: the PTX cannot be read: x.ptx.pack: the archive is cut short"
        );
        assert_eq!(store.names().count(), 0);
    }

    #[test]
    fn assembled_kernels_are_found_by_kernel_and_device() {
        let packed = pack(&[vec![("a.sm_80".to_owned(), b"code".to_vec())]]).unwrap();
        let packed = leaked(packed);
        let store = Store::new(&[("x.cubin.pack", packed), ("y.cubin.pack", &packed[..9])]);
        assert_eq!(store.assembled("a", "sm_80").as_deref(), Some(&b"code"[..]));
        assert_eq!((store.assembled("a", "sm_90"), store.assembled("b", "sm_80")), (None, None));
    }
}
