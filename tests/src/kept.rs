//! Cases that once failed: their seeds, in a file of each property.

use proptest::test_runner::{FailurePersistence, FileFailurePersistence, PersistedSeed};
use std::any::Any;
use std::fmt::Debug;
use std::fs::create_dir_all;

/// The file of a property, `proptest-regressions/<test>.txt`. Only who replays reads it; everybody adds to it.
#[derive(Clone, Debug, PartialEq)]
pub struct Kept {
    file: FileFailurePersistence,
    replays: bool,
}

impl Kept {
    /// Of this property. Without the folder a seed is only printed, which proptest says itself.
    pub fn new(test: &str, replays: bool) -> Self {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/proptest-regressions");
        let _ = create_dir_all(folder);
        // One short text per part of a property and process.
        let file: &'static str = Box::leak(format!("{folder}/{test}.txt").into_boxed_str());
        Kept { file: FileFailurePersistence::Direct(file), replays }
    }
}

impl FailurePersistence for Kept {
    fn load_persisted_failures2(&self, source_file: Option<&'static str>) -> Vec<PersistedSeed> {
        if self.replays { self.file.load_persisted_failures2(source_file) } else { Vec::new() }
    }

    fn save_persisted_failure2(
        &mut self,
        source_file: Option<&'static str>,
        seed: PersistedSeed,
        shrunken_value: &dyn Debug,
    ) {
        self.file.save_persisted_failure2(source_file, seed, shrunken_value);
    }

    fn box_clone(&self) -> Box<dyn FailurePersistence> {
        Box::new(self.clone())
    }

    fn eq(&self, other: &dyn FailurePersistence) -> bool {
        other.as_any().downcast_ref::<Self>() == Some(self)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kept_seeds_are_read_by_who_replays_alone() {
        let seeds = |replays| Kept::new("nan-q", replays).load_persisted_failures2(None).len();
        assert!(seeds(true) > 0);
        assert_eq!(seeds(false), 0);
    }
}
