//! Locations within an ulp of the edge of a cell.
//!
//! There a sample is continuous, and its gradient by the location is not: it may be that of either side. Which
//! one, the shared function decides; these tests know nothing of it, and compute both sides in f64.

use super::{SAMPLINGS, computed};
use finite_attention::check::msda::{MsdaCase, MsdaNumbers};
use finite_attention::{Dtype, Mode, Padding};
use finite_attention_tests::device::open;

/// A coordinate along a side: position, and the cells that it may be in with its fraction there.
struct Axis {
    slope: f64,
    sides: Vec<(i64, f64)>,
}

impl Axis {
    fn new(x: f32, size: usize, padding: Padding, align_corners: bool) -> Self {
        let (x, size) = (f64::from(x), size as f64);
        let slope = if align_corners { size - 1.0 } else { size };
        let position = if align_corners { x * slope } else { x * slope - 0.5 };
        // f32 arithmetic leaves the exact position by at most two roundings.
        let near = 3e-7 * (position.abs() + 0.5);
        let held = |position: f64| match padding {
            Padding::Zeros => position,
            Padding::Border => position.clamp(0.0, size - 1.0),
        };
        let mut sides = Vec::new();
        for side in [position - near, position, position + near] {
            let cell = held(side).floor();
            let entry = (cell as i64, held(position) - cell);
            if sides.iter().all(|&(cell, _)| cell != entry.0) {
                sides.push(entry);
            }
        }
        let is_held = |position: f64| position <= 0.0 || position >= size - 1.0;
        let slope = if padding == Padding::Border && is_held(position) { 0.0 } else { slope };
        Axis { slope, sides }
    }
}

/// The corners of one channel, of a level that begins with row `start` of value.
fn corners(value: &[f32], shape: [usize; 2], y: i64, x: i64) -> [f64; 4] {
    let [height, width] = shape.map(|size| size as i64);
    let at = |y: i64, x: i64| {
        let inside = (0..height).contains(&y) && (0..width).contains(&x);
        if inside { f64::from(value[(y * width + x) as usize]) } else { 0.0 }
    };
    [at(y, x), at(y, x + 1), at(y + 1, x), at(y + 1, x + 1)]
}

/// The coordinate of the edge before cell `cell`, moved by so many ulps.
fn near_edge(cell: usize, size: usize, align_corners: bool, ulps: i32) -> f32 {
    let x = if align_corners && size > 1 {
        (cell as f64 / (size - 1) as f64) as f32
    } else {
        ((cell as f64 + 0.5) / size as f64) as f32
    };
    if x == 0.0 {
        ulps as f32 * f32::EPSILON
    } else {
        f32::from_bits(x.to_bits().wrapping_add_signed(ulps))
    }
}

#[test]
fn near_an_edge_the_gradient_is_that_of_either_side() {
    const SHAPE: [usize; 2] = [7, 13];
    let device = open();
    let (mut both, mut checked) = (0, 0);
    for (padding, align_corners) in SAMPLINGS {
        let mut locations = Vec::new();
        for cell in 0..SHAPE[1] {
            for ulps in -3..=3 {
                let x = near_edge(cell, SHAPE[1], align_corners, ulps);
                locations.push([x, 0.4]);
                locations.push([x, near_edge(cell % SHAPE[0], SHAPE[0], align_corners, -ulps)]);
            }
        }
        let case = MsdaCase {
            queries: locations.len(),
            heads: 1,
            channels: 1,
            shapes: vec![SHAPE],
            level_points: 1,
            dtype: Dtype::F32,
            padding,
            align_corners,
            mode: Mode::Fast,
            ..MsdaCase::small()
        };
        let numbers = MsdaNumbers {
            locations: locations.concat(),
            weights: vec![1.0; locations.len()],
            d_o: vec![1.0; locations.len()],
            ..MsdaNumbers::drawn(&case)
        };
        let computed = computed(&device, &case, &numbers);
        for (query, &[x, y]) in locations.iter().enumerate() {
            let along_x = Axis::new(x, SHAPE[1], padding, align_corners);
            let along_y = Axis::new(y, SHAPE[0], padding, align_corners);
            let got = [0, 1].map(|axis| f64::from(computed.d_locations[2 * query + axis]));
            let mut sides = Vec::new();
            for &(column, fx) in &along_x.sides {
                for &(row, fy) in &along_y.sides {
                    let [v00, v01, v10, v11] = corners(&numbers.value, SHAPE, row, column);
                    let dx = (1.0 - fy) * (v01 - v00) + fy * (v11 - v10);
                    let dy = (1.0 - fx) * (v10 - v00) + fx * (v11 - v01);
                    let sample = v00 + fx * (v01 - v00) + fy * dy;
                    // Continuous: whichever side it is.
                    assert!((f64::from(computed.o[query]) - sample).abs() < 2e-5, "{x} {y}");
                    sides.push([along_x.slope * dx, along_y.slope * dy]);
                }
            }
            // Where the border begins to hold, its gradient may be 0 already.
            let mut held = vec![[1.0, 1.0]];
            if padding == Padding::Border {
                held.extend([[0.0, 1.0], [1.0, 0.0], [0.0, 0.0]]);
            }
            let fits = sides.iter().any(|side| {
                held.iter().any(|held| (0..2).all(|i| (side[i] * held[i] - got[i]).abs() < 2e-4))
            });
            assert!(fits, "{padding:?} {align_corners} ({x}, {y}): {got:?} is none of {sides:?}");
            checked += 1;
            both += usize::from(sides.len() > 1);
        }
    }
    // The points are as near as they should be: most have two sides.
    assert!(both * 2 > checked, "{both} of {checked}");
}
