//! The stages together, on kernels small enough to know what must come out.

use super::*;

/// Compiles the fixture to PTX, or says why not. `mark` is stage 2.
fn two_barriers(test: &str, mark: fn(&str) -> Result<String>) -> Option<String> {
    let compiler = match compiler::find() {
        Ok(compiler) => compiler,
        Err(error) => {
            println!("skipped: {error:#}");
            return None;
        }
    };
    let name = "two_barriers";
    let dir = target_dir().join(format!("kernels/test-{test}-{}", std::process::id()));
    fs::create_dir_all(&dir).unwrap();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let source = rustc::Source { root, lib: "fixtures/two_barriers.rs", name };
    let ir = rustc::llvm_ir(&compiler, &source, "sm_80", &dir).unwrap();
    assert_eq!(llvm::entries(&ir).unwrap(), [name]);
    let path = llvm::bitcode(&compiler, &mark(&ir).unwrap(), "marked", &dir).unwrap();
    let ptx = llvm::ptx(&compiler, &path, name, "sm_80", false, &dir).unwrap();
    fs::remove_dir_all(&dir).unwrap();
    Some(ptx)
}

#[test]
fn two_barriers_between_branches_stay_two() {
    if let Some(ptx) = two_barriers("marked", convergent::mark) {
        assert_eq!(lint::convergent(&ptx).get("bar.sync"), Some(&2), "{ptx}");
    }
}

/// When this fails, the compiler has learnt that inline assembly is convergent, and stage 2 can go.
#[test]
fn two_barriers_become_three_when_they_are_not_marked() {
    if let Some(ptx) = two_barriers("unmarked", |ir| Ok(ir.to_owned())) {
        assert_eq!(lint::convergent(&ptx).get("bar.sync"), Some(&3), "{ptx}");
    }
}

#[test]
fn line_tables_name_files_relative_to_the_root() {
    if let Some(ptx) = two_barriers("lines", convergent::mark) {
        assert!(ptx.contains("\"fixtures/two_barriers.rs\""), "{ptx}");
        assert!(!ptx.contains("\"/"), "{ptx}");
    }
}

#[test]
fn shares_are_all_kernels_each_once() {
    let mut shared: Vec<_> =
        (0..Share::COUNT).flat_map(|share| Share(share).kernels()).map(|spec| spec.name).collect();
    shared.sort_unstable();
    let mut all: Vec<_> = KERNELS.iter().map(|spec| spec.name).collect();
    all.sort_unstable();
    assert_eq!(shared, all);
    let seeds = (0..20).map(|seed| Share::of_seed(seed).0);
    assert!(seeds.clone().all(|share| share < Share::COUNT) && seeds.max() == Some(Share::COUNT - 1));
}
