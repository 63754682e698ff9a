//! Multi-scale deformable attention in f64, and in the low precision: `docs/semantics.md`, section 5.
//!
//! Of the kernels it shares the cell and the fraction of a location, as the page demands; all else is its
//! own. Tensors are dense.

use super::Precision;
use crate::problem::{Padding, Place, Sampling};

/// The problem as the reference sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct MsdaSizes {
    /// B.
    pub batches: usize,
    /// N.
    pub queries: usize,
    /// H.
    pub heads: usize,
    /// C.
    pub channels: usize,
    /// Height and width of each level.
    pub shapes: Vec<[usize; 2]>,
    /// P.
    pub level_points: usize,
    /// What a sample takes from outside.
    pub padding: Padding,
    /// See [`Sampling::align_corners`].
    pub align_corners: bool,
}

/// The inputs, in logical order.
#[derive(Clone, Copy, Debug)]
pub struct MsdaTensors<'t> {
    /// `[B, cells, H, C]`.
    pub value: &'t [f32],
    /// `[B, N, H, L, P, 2]`.
    pub locations: &'t [f32],
    /// `[B, N, H, L, P]`.
    pub weights: &'t [f32],
}

/// Exact gradients.
#[derive(Clone, Debug, PartialEq)]
pub struct ExactMsdaGradients {
    /// `[B, cells, H, C]`.
    pub d_value: Vec<f64>,
    /// `[B, N, H, L, P, 2]`.
    pub d_locations: Vec<f64>,
    /// `[B, N, H, L, P]`.
    pub d_weights: Vec<f64>,
}

/// Gradients in the low precision.
#[derive(Clone, Debug, PartialEq)]
pub struct NaiveMsdaGradients {
    /// `[B, cells, H, C]`.
    pub d_value: Vec<f32>,
    /// `[B, N, H, L, P, 2]`.
    pub d_locations: Vec<f32>,
    /// `[B, N, H, L, P]`.
    pub d_weights: Vec<f32>,
}

/// A point as a query meets it.
struct Point {
    /// Its number among the points of all queries.
    index: usize,
    /// Its query and head, `(b N + n) H + h`.
    query: usize,
    x: Place,
    y: Place,
    /// Offsets in value of the first channel of `[v00, v01, v10, v11]`; none outside.
    corners: [Option<usize>; 4],
}

impl MsdaSizes {
    /// Rows of value.
    pub fn cells(&self) -> usize {
        self.shapes.iter().map(|[height, width]| height * width).sum()
    }

    /// Points of a query.
    pub fn points(&self) -> usize {
        self.shapes.len() * self.level_points
    }

    /// Points of all queries and heads.
    pub fn all_points(&self) -> usize {
        self.batches * self.queries * self.heads * self.points()
    }

    fn all(&self, locations: &[f32]) -> impl Iterator<Item = Point> {
        let border = self.padding == Padding::Border;
        let sampling = Sampling { align_corners: self.align_corners, border };
        let mut starts = vec![0];
        for [height, width] in &self.shapes {
            starts.push(starts[starts.len() - 1] + height * width);
        }
        let cells = self.cells();
        let point = move |index: usize| {
            let (query, in_query) = (index / self.points(), index % self.points());
            let (head, batch) = (query % self.heads, query / self.heads / self.queries);
            let level = in_query / self.level_points;
            let [height, width] = self.shapes[level];
            let x = sampling.place(locations[2 * index], width as u32);
            let y = sampling.place(locations[2 * index + 1], height as u32);
            let corner = |down: i32, right: i32| {
                let row = usize::try_from(y.cell + down).ok().filter(|&row| row < height)?;
                let column = usize::try_from(x.cell + right).ok().filter(|&column| column < width)?;
                let cell = batch * cells + starts[level] + row * width + column;
                Some((cell * self.heads + head) * self.channels)
            };
            let corners = [corner(0, 0), corner(0, 1), corner(1, 0), corner(1, 1)];
            Point { index, query, x, y, corners }
        };
        (0..self.all_points()).map(point)
    }
}

impl Point {
    /// What each corner counts in the sample.
    fn shares(&self) -> [f64; 4] {
        let (x, y) = (f64::from(self.x.fraction), f64::from(self.y.fraction));
        [(1.0 - y) * (1.0 - x), (1.0 - y) * x, y * (1.0 - x), y * x]
    }

    /// The channels of each corner, which are `zeros` outside.
    fn rows<'v>(&self, value: &'v [f32], zeros: &'v [f32]) -> [&'v [f32]; 4] {
        self.corners.map(|corner| corner.map_or(zeros, |first| &value[first..]))
    }

    /// The corners of one channel.
    fn values(&self, value: &[f32], channel: usize) -> [f64; 4] {
        self.corners.map(|corner| corner.map_or(0.0, |first| f64::from(value[first + channel])))
    }

    /// By how much the sample grows with x and with y, per cell, from the corners.
    fn slopes(&self, [v00, v01, v10, v11]: [f64; 4]) -> [f64; 2] {
        let (x, y) = (f64::from(self.x.fraction), f64::from(self.y.fraction));
        let along_x = (1.0 - y) * (v01 - v00) + y * (v11 - v10);
        let along_y = (1.0 - x) * (v10 - v00) + x * (v11 - v01);
        [along_x, along_y]
    }
}

fn sum(products: [f64; 4], factors: [f64; 4]) -> f64 {
    products.iter().zip(factors).map(|(a, b)| a * b).sum()
}

/// o, `[B, N, H, C]`, in f64.
pub fn exact_msda(sizes: &MsdaSizes, tensors: MsdaTensors<'_>) -> Vec<f64> {
    let channels = sizes.channels;
    let mut o = vec![0.0; sizes.batches * sizes.queries * sizes.heads * channels];
    let zeros = vec![0.0; channels];
    for point in sizes.all(tensors.locations) {
        let (weight, shares) = (f64::from(tensors.weights[point.index]), point.shares());
        let [v00, v01, v10, v11] = point.rows(tensors.value, &zeros).map(|row| &row[..channels]);
        let row = &mut o[point.query * channels..][..channels];
        for (channel, o) in row.iter_mut().enumerate() {
            let values = [v00[channel], v01[channel], v10[channel], v11[channel]].map(f64::from);
            *o += weight * sum(shares, values);
        }
    }
    o
}

/// Gradients in f64, of dO `[B, N, H, C]`.
pub fn exact_msda_backward(
    sizes: &MsdaSizes,
    tensors: MsdaTensors<'_>,
    d_o: &[f32],
) -> ExactMsdaGradients {
    let channels = sizes.channels;
    let mut d_value = vec![0.0; tensors.value.len()];
    let mut d_locations = vec![0.0; tensors.locations.len()];
    let mut d_weights = vec![0.0; tensors.weights.len()];
    let zeros = vec![0.0; channels];
    for point in sizes.all(tensors.locations) {
        let (weight, shares) = (f64::from(tensors.weights[point.index]), point.shares());
        let [v00, v01, v10, v11] = point.rows(tensors.value, &zeros).map(|row| &row[..channels]);
        let gradient = &d_o[point.query * channels..][..channels];
        let (mut d_weight, mut d_x, mut d_y) = (0.0, 0.0, 0.0);
        for (channel, &g) in gradient.iter().enumerate() {
            let g = f64::from(g);
            let values = [v00[channel], v01[channel], v10[channel], v11[channel]].map(f64::from);
            d_weight += g * sum(shares, values);
            let [along_x, along_y] = point.slopes(values);
            d_x += g * along_x;
            d_y += g * along_y;
        }
        d_weights[point.index] = d_weight;
        for (corner, share) in point.corners.iter().zip(shares) {
            let Some(first) = *corner else { continue };
            for (d_value, &g) in d_value[first..][..channels].iter_mut().zip(gradient) {
                *d_value += f64::from(g) * weight * share;
            }
        }
        // NaN of either coordinate is that of both.
        let poison = 0.0 * f64::from(point.x.fraction) + 0.0 * f64::from(point.y.fraction);
        d_locations[2 * point.index] = f64::from(point.x.slope) * weight * d_x + poison;
        d_locations[2 * point.index + 1] = f64::from(point.y.slope) * weight * d_y + poison;
    }
    ExactMsdaGradients { d_value, d_locations, d_weights }
}

/// o as unfused code has it: samples rounded to the element type, sums in f32.
pub fn naive_msda(sizes: &MsdaSizes, tensors: MsdaTensors<'_>, dtype: Precision) -> Vec<f32> {
    let channels = sizes.channels;
    let mut o = vec![0.0f32; sizes.batches * sizes.queries * sizes.heads * channels];
    for point in sizes.all(tensors.locations) {
        let weight = dtype.round(tensors.weights[point.index]);
        let row = &mut o[point.query * channels..][..channels];
        for (channel, o) in row.iter_mut().enumerate() {
            *o += weight * naive_sample(&point, tensors.value, channel, dtype);
        }
    }
    o.into_iter().map(|o| dtype.round(o)).collect()
}

/// Shares and the sample, rounded to the element type.
fn naive_sample(point: &Point, value: &[f32], channel: usize, dtype: Precision) -> f32 {
    let values = point.values(value, channel).map(|value| value as f32);
    let (shares, mut sample) = (point.shares(), 0.0);
    for (share, value) in shares.into_iter().zip(values) {
        sample += dtype.round(share as f32) * value;
    }
    dtype.round(sample)
}

/// Gradients as unfused code has them: shares, samples, slopes and products with a weight rounded to the
/// element type of value, sums in f32, results rounded to `[value, locations, weights]`.
pub fn naive_msda_backward(
    sizes: &MsdaSizes,
    tensors: MsdaTensors<'_>,
    d_o: &[f32],
    outputs: [Precision; 3],
) -> NaiveMsdaGradients {
    let (channels, dtype) = (sizes.channels, outputs[0]);
    let mut d_value = vec![0.0f32; tensors.value.len()];
    let mut d_locations = vec![0.0f32; tensors.locations.len()];
    let mut d_weights = vec![0.0f32; tensors.weights.len()];
    for point in sizes.all(tensors.locations) {
        let weight = dtype.round(tensors.weights[point.index]);
        let (mut d_x, mut d_y) = (0.0f32, 0.0f32);
        for channel in 0..channels {
            let g = d_o[point.query * channels + channel];
            d_weights[point.index] += g * naive_sample(&point, tensors.value, channel, dtype);
            let slopes = point.slopes(point.values(tensors.value, channel));
            d_x += g * dtype.round(slopes[0] as f32);
            d_y += g * dtype.round(slopes[1] as f32);
            let g = dtype.round(g * weight);
            for (corner, share) in point.corners.iter().zip(point.shares()) {
                if let Some(first) = corner {
                    d_value[first + channel] += dtype.round(g * dtype.round(share as f32));
                }
            }
        }
        d_locations[2 * point.index] = point.x.slope * weight * d_x;
        d_locations[2 * point.index + 1] = point.y.slope * weight * d_y;
    }
    let rounded = |tensor: Vec<f32>, output: Precision| {
        tensor.into_iter().map(|number| output.round(number)).collect()
    };
    NaiveMsdaGradients {
        d_value: rounded(d_value, outputs[0]),
        d_locations: rounded(d_locations, outputs[1]),
        d_weights: rounded(d_weights, outputs[2]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(padding: Padding, align_corners: bool) -> MsdaSizes {
        MsdaSizes {
            batches: 2,
            queries: 3,
            heads: 2,
            channels: 3,
            shapes: vec![[4, 5], [1, 3]],
            level_points: 2,
            padding,
            align_corners,
        }
    }

    /// Numbers that look random, from -1 to 1.
    fn numbers(count: usize, salt: u64) -> Vec<f32> {
        let mixed = |i: usize| {
            let mixed = (i as u64 + salt * 1000 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 40
        };
        (0..count).map(|i| mixed(i) as f32 / (1 << 23) as f32 - 1.0).collect()
    }

    /// The gradient of `sum of g o` by every number is what central differences say, wherever both
    /// samples fall in one cell.
    #[test]
    fn gradients_are_central_differences() {
        const STEP: f32 = 1.0 / 1024.0;
        for (padding, align) in [
            (Padding::Zeros, false),
            (Padding::Zeros, true),
            (Padding::Border, false),
            (Padding::Border, true),
        ] {
            let sizes = sizes(padding, align);
            let value = numbers(sizes.batches * sizes.cells() * sizes.heads * sizes.channels, 1);
            let locations: Vec<f32> =
                numbers(2 * sizes.all_points(), 2).iter().map(|x| x * 0.75 + 0.5).collect();
            let weights = numbers(sizes.all_points(), 3);
            let g = numbers(sizes.batches * sizes.queries * sizes.heads * sizes.channels, 4);
            let tensors = MsdaTensors { value: &value, locations: &locations, weights: &weights };
            let gradients = exact_msda_backward(&sizes, tensors, &g);
            let loss = |tensors: MsdaTensors<'_>| -> f64 {
                let o = exact_msda(&sizes, tensors);
                o.iter().zip(&g).map(|(o, &g)| o * f64::from(g)).sum()
            };
            let moved = |numbers: &[f32], index: usize, by: f32| {
                let mut moved = numbers.to_vec();
                moved[index] += by;
                moved
            };
            let mut compared = 0;
            for which in 0..3 {
                let of = [&value, &locations, &weights][which];
                let expected = [&gradients.d_value, &gradients.d_locations, &gradients.d_weights][which];
                for index in 0..of.len() {
                    let [up, down] = [STEP, -STEP].map(|by| moved(of, index, by));
                    let with = |numbers: &[f32]| {
                        let mut all = [&value[..], &locations, &weights];
                        all[which] = numbers;
                        loss(MsdaTensors { value: all[0], locations: all[1], weights: all[2] })
                    };
                    if which == 1 {
                        let of = |locations: &[f32]| {
                            let point = sizes.all(locations).nth(index / 2).unwrap();
                            (point.x.cell, point.y.cell, point.x.slope, point.y.slope)
                        };
                        if of(&up) != of(&locations) || of(&down) != of(&locations) {
                            continue;
                        }
                    }
                    let step = f64::from(up[index]) - f64::from(down[index]);
                    let slope = (with(&up) - with(&down)) / step;
                    // Of locations, the position is rounded to f32.
                    let allowed = if which == 1 { 2e-3 } else { 1e-9 };
                    assert!((slope - expected[index]).abs() <= allowed, "{which} {index}: {slope}");
                    compared += 1;
                }
            }
            assert!(compared > value.len() + weights.len() + locations.len() / 2);
        }
    }

    #[test]
    fn unfused_code_in_f32_is_close_to_the_exact() {
        let sizes = sizes(Padding::Zeros, false);
        let value = numbers(sizes.batches * sizes.cells() * sizes.heads * sizes.channels, 1);
        let locations: Vec<f32> =
            numbers(2 * sizes.all_points(), 2).iter().map(|x| x * 0.75 + 0.5).collect();
        let weights = numbers(sizes.all_points(), 3);
        let g = numbers(sizes.batches * sizes.queries * sizes.heads * sizes.channels, 4);
        let tensors = MsdaTensors { value: &value, locations: &locations, weights: &weights };
        let exact = exact_msda_backward(&sizes, tensors, &g);
        let naive = naive_msda_backward(&sizes, tensors, &g, [Precision::F32; 3]);
        let far = |naive: &[f32], exact: &[f64]| {
            naive.iter().zip(exact).map(|(&a, b)| (f64::from(a) - b).abs()).fold(0.0, f64::max)
        };
        assert!(far(&naive_msda(&sizes, tensors, Precision::F32), &exact_msda(&sizes, tensors)) < 1e-6);
        assert!(far(&naive.d_value, &exact.d_value) < 1e-6);
        assert!(far(&naive.d_locations, &exact.d_locations) < 1e-5);
        assert!(far(&naive.d_weights, &exact.d_weights) < 1e-6);
    }
}
