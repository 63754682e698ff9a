//! `include/finite_attention.h` is what a C compiler accepts, and says what the library does.

use finite_attention::c_api::{
    CAttention, CBackwardArgs, CDeviceTensor, CDropout, CDynamicMask, CForwardArgs, CGradScalerValues,
    CMsda, CMsdaBackwardArgs, CMsdaForwardArgs, CPartial, CScanResult, CScores, CTensor, Status,
};
use std::collections::BTreeSet;
use std::mem::offset_of;
use std::path::Path;
use std::process::Command;

const HEADER: &str = include_str!("../include/finite_attention.h");

/// Assertions in C that a struct is as large as in Rust, and that its fields stand where they do there and are
/// as large.
macro_rules! same_layout {
    ($c:literal, $rust:ty, $($field:ident)*) => {{
        let mut text = assertion(concat!("sizeof(", $c, ")"), size_of::<$rust>());
        $(
            let field = concat!("offsetof(", $c, ", ", stringify!($field), ")");
            text += &assertion(field, offset_of!($rust, $field));
            let field = concat!("sizeof(((", $c, " *)0)->", stringify!($field), ")");
            text += &assertion(field, size_of_val(&<$rust>::default().$field));
        )*
        text
    }};
}

fn assertion(what: &str, number: usize) -> String {
    format!("_Static_assert({what} == {number}, \"{what} is {number} in Rust\");\n")
}

/// A C file that only compiles if the header fits the library.
fn program() -> String {
    let mut text = "#include \"finite_attention.h\"\n#include <stddef.h>\n".to_owned();
    text += &same_layout!("fattn_tensor", CTensor, address shape strides);
    text += &same_layout!(
        "fattn_attention", CAttention,
        dtype output_dtype mask alignment window_left window_right scale softcap q k v o lse
        cu_seqlens_q cu_seqlens_k sequences max_query_rows max_key_rows
    );
    text += &same_layout!(
        "fattn_forward_args", CForwardArgs,
        struct_bytes num_splits pack_gqa reserved attention scores dropout precision reserved_2
    );
    text += &same_layout!(
        "fattn_backward_args", CBackwardArgs,
        struct_bytes reserved attention deterministic gradients_f32 d_o dq dk dv d_lse workspace
        workspace_bytes scores d_bias d_bias_f32 reserved_2 d_sinks dropout
    );
    text += &same_layout!(
        "fattn_scores", CScores,
        bias bias_dtype alibi_per_batch mask alibi_slopes sinks
    );
    text += &same_layout!("fattn_dropout", CDropout, rate reserved seed offset);
    text += &same_layout!("fattn_dynamic_mask", CDynamicMask, window block_size way reserved);
    text += &same_layout!(
        "fattn_partial", CPartial,
        state is_first is_last total_keys adds_to_keys dq_f32 reserved
    );
    text += &same_layout!(
        "fattn_msda", CMsda,
        dtype locations_dtype weights_dtype padding align_corners levels level_points shapes value locations
        weights
    );
    text += &same_layout!("fattn_msda_forward_args", CMsdaForwardArgs, struct_bytes reserved msda o);
    text += &same_layout!(
        "fattn_msda_backward_args", CMsdaBackwardArgs,
        struct_bytes deterministic msda d_o d_value d_locations d_weights workspace workspace_bytes
    );
    text += &same_layout!("fattn_device_tensor", CDeviceTensor, address name shape strides rank dtype);
    text += &same_layout!(
        "fattn_scan_result", CScanResult,
        nan positive_infinity negative_infinity first norm
    );
    text += &same_layout!(
        "fattn_grad_scaler_values", CGradScalerValues,
        growth_factor backoff_factor scale growth_interval growth_tracker reserved
    );
    for (name, status) in [
        ("FATTN_SUCCESS", Status::Success),
        ("FATTN_INVALID_ARGUMENT", Status::InvalidArgument),
        ("FATTN_NO_DEVICE", Status::NoDevice),
        ("FATTN_DEVICE_FAILED", Status::DeviceFailed),
        ("FATTN_PANICKED", Status::Panicked),
        ("FATTN_NON_FINITE", Status::NonFinite),
    ] {
        text += &assertion(name, status as usize);
    }
    text += "int main(void) {\n    fattn_device *device = 0;\n    fattn_forward_args args = {0};\n";
    text += "    return fattn_device_open(\"cuda\", &device) || fattn_forward(device, &args, 0);\n}\n";
    text
}

#[test]
fn a_c_compiler_sees_the_structs_and_numbers_that_rust_sees() {
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    if Command::new(&compiler).arg("--version").output().is_err() {
        println!("not tested: there is no C compiler `{compiler}`");
        return;
    }
    let source = std::env::temp_dir().join(format!("fattn-{}-header.c", std::process::id()));
    std::fs::write(&source, program()).unwrap();
    let include = Path::new(env!("CARGO_MANIFEST_DIR")).join("include");
    let compiled = Command::new(&compiler)
        .args(["-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only", "-I"])
        .args([&include, &source])
        .output();
    std::fs::remove_file(&source).unwrap();
    let compiled = compiled.unwrap();
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
}

/// Names that follow `before` and are followed by `(`.
fn functions(text: &str, before: &[&str]) -> BTreeSet<String> {
    let lines = text.lines().filter_map(|line| before.iter().find_map(|start| line.strip_prefix(start)));
    lines.filter_map(|rest| Some(rest.split_once('(')?.0.to_owned())).collect()
}

#[test]
fn the_header_declares_every_function_and_no_others() {
    let declared = functions(HEADER, &["int32_t ", "void ", "const char *"]);
    let sources = [
        include_str!("../src/c_api.rs"),
        include_str!("../src/c_api/anomaly.rs"),
        include_str!("../src/c_api/dynamic.rs"),
        include_str!("../src/c_api/init.rs"),
        include_str!("../src/c_api/memory.rs"),
        include_str!("../src/c_api/partial.rs"),
        include_str!("../src/c_api/training.rs"),
    ];
    let starts = ["pub unsafe extern \"C\" fn ", "pub extern \"C\" fn "];
    let exported: BTreeSet<_> =
        sources.into_iter().flat_map(|source| functions(source, &starts)).collect();
    assert_eq!(declared, exported);
    assert_eq!(declared.len(), 47);
    let version = format!("#define FATTN_VERSION \"{}\"", env!("CARGO_PKG_VERSION"));
    assert!(HEADER.contains(&version), "{version}");
}
