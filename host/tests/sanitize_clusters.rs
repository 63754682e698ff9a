//! `fattn sanitize` of kernels whose blocks form clusters: `--cluster`, cases, and what cannot be launched.

mod command;

use command::{Directory, sanitized as answer};
use serde_json::{Value, json};

/// Each thread stores what the thread of the same number in the next block of its cluster has written to shared
/// memory: `1` in block 1. `SYNC` stands where the blocks meet.
const RING: &str = "\
.version 8.0
.target sm_90
.address_size 64
.visible .entry ring(.param .u64 out) {
    .shared .align 4 .b8 room[128];
    .reg .b32 %r<12>; .reg .b64 %d<4>;
    ld.param.u64 %d1, [out]; mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x; mov.u32 %r3, room; shl.b32 %r4, %r1, 2;
    add.u32 %r3, %r3, %r4; st.shared.u32 [%r3], %r2;
    barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
    mov.u32 %r5, %cluster_ctarank; mov.u32 %r6, %cluster_nctarank; add.u32 %r5, %r5, 1; rem.u32 %r5, %r5, %r6;
    mapa.shared::cluster.u32 %r7, %r3, %r5; ld.shared::cluster.u32 %r8, [%r7];
    mad.lo.u32 %r9, %r2, 32, %r1; mul.wide.u32 %d2, %r9, 4; add.u64 %d1, %d1, %d2; st.global.u32 [%d1], %r8;
    SYNC
    ret; }
";
const SYNC: &str = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;";

fn wanted(next: [u32; 4]) -> Vec<u8> {
    next.iter().flat_map(|block| [block.to_le_bytes(); 32].concat()).collect()
}

#[test]
fn clusters_are_as_large_as_the_launch_says() {
    let folder = Directory::new("clusters");
    let ptx = folder.write("ring.ptx", RING.replace("SYNC", SYNC));
    let two = folder.write("two", wanted([1, 0, 3, 2]));
    let four = folder.write("four", wanted([1, 2, 3, 0]));
    let run = |cluster: &[&str], expect: &str, code: i32| {
        let out = format!("buf:u32:128:uninit,written,expect={expect}");
        let given = ["--ptx", ptx.as_str(), "--grid", "4", "--block", "32", "--arg", &out];
        answer(&[&given[..], cluster].concat(), code)
    };
    let text = run(&["--cluster", "2"], &two, 0);
    assert!(
        text.starts_with("kernel ring (sm_90), grid 4x1x1, block 32x1x1, cluster 2x1x1, 0 bytes"),
        "{text}"
    );
    run(&["--cluster", "4,1,1"], &four, 0);
    let json: Value = serde_json::from_str(&run(&["--cluster", "4", "--json"], &four, 0)).unwrap();
    assert_eq!(json["cluster"], json!([4, 1, 1]));
    let text = run(&["--cluster", "3"], &two, 2);
    assert_eq!(text, "fattn: ring: grid [4, 1, 1]: expected multiples of the cluster [3, 1, 1]\n");
    let text = run(&["--cluster", "0"], &two, 2);
    assert_eq!(
        text,
        "fattn: --cluster: expected 1 to 3 numbers of at least 1, such as 4 or 4,2,1, got `0`\n"
    );
}

#[test]
fn a_block_that_does_not_wait_for_the_others_is_found() {
    let folder = Directory::new("cluster-exit");
    let ptx = folder.write("ring.ptx", RING.replace("SYNC", ""));
    let given =
        ["--ptx", &ptx, "--grid", "4", "--block", "32", "--cluster", "2", "--arg", "buf:u32:128:uninit"];
    let text = answer(&[&given[..], &["--schedule", "latest", "--any-order"]].concat(), 1);
    assert!(
        text.contains("1. error: shared memory of a block that may not run: load of 4 bytes"),
        "{text}"
    );
}

#[test]
fn a_case_says_and_keeps_the_clusters_of_its_launches() {
    let folder = Directory::new("cluster-case");
    let required =
        RING.replace("(.param .u64 out) {", "(.param .u64 out) .explicitcluster .reqnctapercluster 2 {");
    folder.write("ring.ptx", RING.replace("SYNC", SYNC));
    folder.write("required.ptx", required.replace("SYNC", SYNC));
    folder.write("four", wanted([1, 2, 3, 0]));
    folder.write("two", wanted([1, 0, 3, 2]));
    let buffer = |name: &str| format!("buf:u32:128:uninit,written,expect={name}");
    let case = json!({
        "modules": { "ring": "ring.ptx", "required": "required.ptx" },
        "buffers": { "x": buffer("four"), "y": buffer("two") },
        "launches": [
            { "module": "ring", "grid": [4], "block": [32], "cluster": [4], "args": ["ref:x"] },
            { "module": "required", "grid": [4], "block": [32], "args": ["ref:y"] },
        ],
    });
    let (case, kept) = (folder.write("case.json", case.to_string()), folder.file("kept.json"));
    for arguments in [&["--case", &case, "--save-case", &kept][..], &["--case", &kept]] {
        let text = answer(arguments, 0);
        assert!(text.contains("cluster 4x1x1") && text.contains("cluster 2x1x1"), "{text}");
    }
    let kept: Value = serde_json::from_str(&std::fs::read_to_string(&kept).unwrap()).unwrap();
    assert_eq!(
        (&kept["launches"][0]["cluster"], &kept["launches"][1]["cluster"]),
        (&json!([4, 1, 1]), &Value::Null)
    );
}
