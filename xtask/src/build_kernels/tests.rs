//! The stages together, on kernels small enough to know what must come out.

use super::*;

/// Compiles the fixture to PTX once for each of these ways of stage 2, or says why not.
fn two_barriers<const N: usize>(marks: [fn(&str) -> Result<String>; N]) -> Option<[String; N]> {
    let compiler = match compiler::find() {
        Ok(compiler) => compiler,
        Err(error) => {
            println!("skipped: {error:#}");
            return None;
        }
    };
    let name = "two_barriers";
    let dir = target_dir().join(format!("kernels/test-{}", std::process::id()));
    fs::create_dir_all(&dir).unwrap();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let source = rustc::Source { root, lib: "fixtures/two_barriers.rs", name };
    let ir = rustc::llvm_ir(&compiler, &source, "sm_80", &dir).unwrap();
    assert_eq!(llvm::entries(&ir).unwrap(), [name]);
    let ptx = marks.map(|mark| {
        let path = llvm::bitcode(&compiler, &mark(&ir).unwrap(), "marked", &dir).unwrap();
        llvm::ptx(&compiler, &path, name, "sm_80", false, &dir).unwrap()
    });
    fs::remove_dir_all(&dir).unwrap();
    Some(ptx)
}

/// When there are not three without marks, the compiler has learnt that inline assembly is convergent, and
/// stage 2 can go.
#[test]
fn two_barriers_between_branches_stay_two_where_they_are_marked() {
    if let Some([marked, unmarked]) = two_barriers([convergent::mark, |ir| Ok(ir.to_owned())]) {
        assert_eq!(lint::convergent(&marked).get("bar.sync"), Some(&2), "{marked}");
        assert_eq!(lint::convergent(&unmarked).get("bar.sync"), Some(&3), "{unmarked}");
        // And line tables name files relative to the root.
        assert!(marked.contains("\"fixtures/two_barriers.rs\""), "{marked}");
        assert!(!marked.contains("\"/"), "{marked}");
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
