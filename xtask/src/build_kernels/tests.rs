//! The stages together, on kernels small enough to know what must come out.

use super::*;

/// Compiles the fixture to PTX, or says why not.
fn two_barriers(test: &str) -> Option<String> {
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
    let path = dir.join("marked.ll");
    fs::write(&path, convergent::mark(&ir).unwrap()).unwrap();
    let ptx = llvm::ptx(&compiler, &path, name, "sm_80", &dir).unwrap();
    fs::remove_dir_all(&dir).unwrap();
    Some(ptx)
}

/// Without stage 2, or with rustc's jump threading, three come out.
#[test]
fn two_barriers_between_branches_stay_two() {
    if let Some(ptx) = two_barriers("count") {
        assert_eq!(lint::convergent(&ptx).get("bar.sync"), Some(&2), "{ptx}");
    }
}

#[test]
fn line_tables_name_files_relative_to_the_root() {
    if let Some(ptx) = two_barriers("lines") {
        assert!(ptx.contains("\"fixtures/two_barriers.rs\""), "{ptx}");
        assert!(!ptx.contains("\"/"), "{ptx}");
    }
}
