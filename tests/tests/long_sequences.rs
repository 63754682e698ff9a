//! Sequences so long that a number of 32 bits does not hold the place of a row.

use finite_attention::attention::launch_forward;
use finite_attention::driver::{DevicePointer, Stream};
use finite_attention::plan::{ForwardPlan, plan_forward};
use finite_attention::{Device, Dtype, ForwardPointers, ForwardProblem, Layout};
use finite_attention_tests::device::open;
use finite_attention_tests::recorder::having_taken;
use half::bf16;

/// Rows of q and o that there is memory for: one query tile.
const ROWS: usize = 192;
const COLUMNS: usize = 64;
const KEYS: usize = 2;

fn numbers(rows: usize, first: usize) -> Vec<bf16> {
    (0..rows * COLUMNS).map(|at| bf16::from_f32(((at + first) * 37 % 101) as f32 / 50.0 - 1.0)).collect()
}

/// o of the first query tile, after what `change` does to the plan; none where it is not for Hopper.
fn first_rows(device: &Device, change: impl Fn(&mut ForwardPlan)) -> Option<Vec<bf16>> {
    let bytes = |rows: usize| rows * COLUMNS * 2;
    let driver = device.driver();
    let place = |rows: usize| driver.allocate(bytes(rows)).unwrap();
    let write = |rows: usize, first: usize| -> DevicePointer {
        let pointer = place(rows);
        let words: Vec<u8> = numbers(rows, first).iter().flat_map(|x| x.to_le_bytes()).collect();
        driver.copy_to_device(pointer, &words).unwrap();
        pointer
    };
    let pointers = ForwardPointers {
        q: write(ROWS, 0),
        k: write(KEYS, 5),
        v: write(KEYS, 11),
        o: place(ROWS),
        ..ForwardPointers::default()
    };
    let layout = |rows| Layout::bshd([1, rows, 1, COLUMNS]);
    let problem = ForwardProblem::new(Dtype::Bf16, layout(ROWS), layout(KEYS), layout(KEYS))
        .with_scale(-0.5)
        .without_lse();
    let mut plan =
        plan_forward(&problem.validate().unwrap(), device.properties(), &pointers).unwrap().unwrap();
    plan.hopper?;
    assert_eq!(plan.variant.kernel.query_rows as usize, ROWS, "{plan}");
    change(&mut plan);
    // SAFETY: the tensors are there; rows beyond them are outside of the maps, by which alone o is written.
    unsafe { launch_forward(device, &plan, Stream::default()) }.unwrap();
    device.synchronize(Stream::default()).unwrap();
    let mut o = vec![0; bytes(ROWS)];
    driver.copy_to_host(&mut o, pointers.o, Stream::default()).unwrap();
    for pointer in [pointers.q, pointers.k, pointers.v, pointers.o] {
        // SAFETY: allocated above, and no kernel uses it any more.
        unsafe { driver.free(pointer) }.unwrap();
    }
    Some(o.chunks_exact(2).map(|bytes| bf16::from_le_bytes([bytes[0], bytes[1]])).collect())
}

/// Rows past the end of q are cleared where q is multiplied by the sign of the scale. In the first tile of a
/// sequence of 2^25 rows and some the sequence's end is so far away that its distance in bytes, 128 to a row, is
/// beyond 32 bits: the tile's own rows were cleared. The tile's end is what counts.
#[test]
fn rows_of_a_tile_far_from_the_end_are_not_cleared() {
    // Whole tiles, whose rows leave by the map of o. The last one comes first, then the first one.
    const TILES: u32 = (1 << 25) / ROWS as u32 + 1;
    let device = open();
    let expected = first_rows(&device, |_| ());
    let found = first_rows(&having_taken(&device, TILES - 2), |plan| {
        plan.params.query_rows = TILES * ROWS as u32;
        plan.blocks = 1;
    });
    assert!(found == expected, "o of the first tile depends on the tiles behind it");
}
