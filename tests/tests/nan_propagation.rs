//! A NaN or an infinity in an input (or in dO) is never hidden: it reaches every output that depends on it, and no
//! other.

use finite_attention::check::{
    Case, Computed, GradientInputs, Inputs, Placement, Surroundings, expected,
};
use finite_attention::problem::Precision;
use finite_attention::reference::{Exact, exact, judge_lse, judge_output, naive, output_allowance};
use finite_attention::{Device, Mode};
use finite_attention_tests::cases::Cases;
use finite_attention_tests::compare::{run, run_with, same_bits};
use finite_attention_tests::property::{Finding, check_all};
use finite_attention_tests::ptx::kernel_of;
use finite_attention_tests::rule::precision;
use kernels_gpu::abi::KERNELS;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tensor {
    Q,
    K,
    V,
    DO,
}

/// One element of an input that is not finite.
#[derive(Clone, Copy, Debug)]
struct Blemish {
    tensor: Tensor,
    batch: usize,
    row: usize,
    /// Query head or key head.
    head: usize,
    column: usize,
    value: f32,
    /// Whether rows of heads that share keys are in one tile.
    heads_share_tiles: bool,
}

impl Blemish {
    /// An element of `tensor`, drawn with the seed of the case.
    fn draw(case: &Case, tensor: Tensor) -> Self {
        let mut random = StdRng::seed_from_u64(!case.seed);
        let (rows, heads, columns) = shape(case, tensor);
        Blemish {
            tensor,
            batch: random.random_range(0..case.batches),
            row: random.random_range(0..rows),
            head: random.random_range(0..heads),
            column: random.random_range(0..columns),
            value: [f32::NAN, f32::INFINITY, f32::NEG_INFINITY][random.random_range(0..3)],
            heads_share_tiles: false,
        }
    }

    /// Into its tensor.
    fn put(&self, case: &Case, tensor: &mut [f32]) {
        let (rows, heads, columns) = shape(case, self.tensor);
        tensor[((self.batch * rows + self.row) * heads + self.head) * columns + self.column] =
            self.value;
    }

    /// How an output of query head `head` depends on it. Keys that a mask hides inside a sequence still
    /// meet the other rows of their tile, so a whole head may depend on a key or a value.
    fn reach(&self, case: &Case, batch: usize, head: usize, row: usize) -> Reach {
        let group = case.query_heads / case.key_heads;
        let key_head = head / group;
        match self.tensor {
            _ if batch != self.batch => Reach::Never,
            Tensor::Q if key_head != self.head / group => Reach::Never,
            Tensor::Q if head != self.head && !self.heads_share_tiles => Reach::Never,
            Tensor::Q if (head, row) != (self.head, self.row) => Reach::Beside,
            Tensor::K | Tensor::V if key_head != self.head => Reach::Never,
            _ => Reach::May,
        }
    }
}

/// Whether the kernel of a variant had rows of several heads in a tile: because it can, or because each head has one query.
fn heads_share_tiles(case: &Case, variant: &str) -> bool {
    let gathers = KERNELS.iter().any(|spec| spec.name == kernel_of(variant) && spec.gathers_heads);
    gathers || case.query_rows == 1 && !case.packed && case.pack_gqa != Some(false)
}

/// Rows, heads and columns.
fn shape(case: &Case, tensor: Tensor) -> (usize, usize, usize) {
    match tensor {
        Tensor::Q => (case.query_rows, case.query_heads, case.head_dim),
        Tensor::K => (case.key_rows, case.key_heads, case.head_dim),
        Tensor::V => (case.key_rows, case.key_heads, case.value_dim),
        Tensor::DO => (case.query_rows, case.query_heads, case.value_dim),
    }
}

/// Whether an output depends on an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reach {
    /// No: the same bits as without the blemish.
    Never,
    /// No, but it is computed by the same warp, which may choose another way to the same result: within
    /// the rule.
    Beside,
    /// Yes, or through its tile.
    May,
}

/// What parts are left to works on all keys at once: the same bits are those of one range of keys.
fn without_ranges_behind_parts(case: &mut Case) {
    if case.precision == Some(Precision::Fast3) {
        case.num_splits = case.num_splits.or(Some(1));
    }
}

/// A case with at least one element in each input, each at its own address.
fn blemishable() -> Cases {
    Cases::fitted(|mut case| {
        case.amplitude = 1.0;
        if case.placement == Placement::Broadcast {
            case.placement = Placement::Bshd;
        }
        without_ranges_behind_parts(&mut case);
        let elements = case.batches * case.query_heads * case.query_rows * case.key_rows;
        (elements > 0).then_some(case)
    })
    .with_fewer_heads()
}

/// The batch, head and row of each element of o, and those of lse.
fn places(case: &Case) -> [Vec<(usize, usize, usize)>; 2] {
    let (rows, heads, columns) = (case.query_rows, case.query_heads, case.value_dim);
    let o = (0..case.batches * rows * heads * columns).map(|at| {
        let pair = at / columns;
        (pair / (heads * rows), pair % heads, pair / heads % rows)
    });
    let lse =
        (0..case.batches * heads * rows).map(|at| (at / rows / heads, at / rows % heads, at % rows));
    [o.collect(), lse.collect()]
}

/// The case whose results are those of this one where a number is not finite: f32 in two parts is then left to fused
/// multiply-adds.
fn with_a_blemish(case: &Case) -> Case {
    Case { precision: case.precision.map(|_| Precision::Fma), ..case.clone() }
}

fn reaches_what_depends_on_it(tensor: Tensor) -> impl Fn(&Device, &Case) -> Finding {
    move |device, case| {
        let mut inputs = Inputs::drawn(case);
        let clean = run(device, &with_a_blemish(case), &inputs, Surroundings::Nan)?;
        let heads_share_tiles = heads_share_tiles(case, &clean.kernel);
        let blemish = Blemish { heads_share_tiles, ..Blemish::draw(case, tensor) };
        let blemished = match tensor {
            Tensor::Q => &mut inputs.q,
            Tensor::K => &mut inputs.k,
            Tensor::V => &mut inputs.v,
            Tensor::DO => return Err("not an input of the forward".into()),
        };
        blemish.put(case, blemished);
        let got = run(device, case, &inputs, Surroundings::Nan)?;
        let Inputs { q, k, v, .. } = &got.inputs;
        let expected = exact(&case.sizes(), q, k, v);
        let [o_places, lse_places] = places(case);
        let report = |what: &str, at: usize, got: f32, clean: f32, exact: f64| {
            Err(format!(
                "{what}: element {at} is {got}, without the blemish {clean}, in f64 {exact}: {blemish:?}"
            ))
        };
        for (at, &(batch, head, row)) in o_places.iter().enumerate() {
            let (o, unblemished, exact) = (got.o[at], clean.o[at], expected.o[at]);
            let other_column = tensor == Tensor::V && at % case.value_dim != blemish.column;
            let never = other_column || blemish.reach(case, batch, head, row) == Reach::Never;
            if !exact.is_finite() && o.is_finite() && o != 0.0
                || never && o.to_bits() != unblemished.to_bits()
            {
                return report("o", at, o, unblemished, exact);
            }
        }
        for (at, &(batch, head, row)) in lse_places.iter().enumerate() {
            let (lse, unblemished, exact) = (got.lse[at], clean.lse[at], expected.lse[at]);
            let never = tensor == Tensor::V || blemish.reach(case, batch, head, row) == Reach::Never;
            if !exact.is_finite() && lse.is_finite() || never && lse.to_bits() != unblemished.to_bits() {
                return report("lse", at, lse, unblemished, exact);
            }
        }
        beside_it_all_is_right(case, &blemish, &got, &expected)
    }
}

/// The rule, for the rows beside a blemished query.
fn beside_it_all_is_right(case: &Case, blemish: &Blemish, got: &Computed, exact: &Exact) -> Finding {
    let Inputs { q, k, v, .. } = &got.inputs;
    let (input, output) = (precision(case.dtype), precision(case.output_dtype));
    let naive = naive(&case.sizes(), input, output, q, k, v);
    let [o_places, lse_places] = places(case);
    let beside = |places: &[(usize, usize, usize)]| -> Vec<usize> {
        let reach = |&at: &usize| {
            let (batch, head, row) = places[at];
            blemish.reach(case, batch, head, row) == Reach::Beside
        };
        (0..places.len()).filter(reach).collect()
    };
    let (o, lse) = (beside(&o_places), beside(&lse_places));
    let (exact_o, exact_lse) = (pick(&exact.o, &o), pick(&exact.lse, &lse));
    // The allowance is that of the whole tensor: NaN counts for nothing in it.
    let allowed = output_allowance(&naive.o, &exact.o, output);
    let o = judge_output(&pick(&got.o, &o), &exact_o, allowed);
    let lse = judge_lse(&pick(&got.lse, &lse), &exact_lse);
    if o.passes() && lse.passes() {
        Ok(())
    } else {
        Err(format!("beside {blemish:?}: o {o:?}, lse {lse:?}"))
    }
}

fn pick<T: Copy>(tensor: &[T], elements: &[usize]) -> Vec<T> {
    elements.iter().map(|&at| tensor[at]).collect()
}

#[test]
fn a_blemish_of_q_reaches_its_row_and_no_other() {
    check_all("nan-q", 50, blemishable(), reaches_what_depends_on_it(Tensor::Q));
}

#[test]
fn a_blemish_of_k_reaches_the_rows_that_see_it_and_no_other_head() {
    check_all("nan-k", 50, blemishable(), reaches_what_depends_on_it(Tensor::K));
}

#[test]
fn a_blemish_of_v_reaches_the_rows_that_see_it_and_no_other_column() {
    check_all("nan-v", 50, blemishable(), reaches_what_depends_on_it(Tensor::V));
}

/// A blemish of dO, with gradients that are the same in every run.
fn reaches_the_gradients_that_depend_on_it(device: &Device, case: &Case) -> Finding {
    let inputs = Inputs::drawn(case);
    let mut d_o = GradientInputs::drawn(case);
    let clean = run_with(device, &with_a_blemish(case), &inputs, &d_o, Surroundings::Nan)?;
    let blemish = Blemish::draw(case, Tensor::DO);
    blemish.put(case, &mut d_o.d_o);
    let got = run_with(device, case, &inputs, &d_o, Surroundings::Nan)?;
    // What is left to fused multiply-adds is not the forward.
    let alone = Case { gradients: None, ..case.clone() };
    same_bits("o", &got.o, &run(device, &alone, &inputs, Surroundings::Nan)?.o)?;
    let (inputs_seen, o) = (&got.inputs, &got.o);
    let (Some(got), Some(clean)) = (&got.gradients, &clean.gradients) else {
        return Err("there are no gradients".into());
    };
    let Some((exact, _)) = expected(case, inputs_seen, &got.inputs, o).gradients else {
        return Err("there are no gradients to expect".into());
    };
    let group = case.query_heads / case.key_heads;
    let (queries, keys) = (case.query_rows, case.key_rows);
    for (name, heads, columns, rows, got, clean, exact) in [
        ("dq", case.query_heads, case.head_dim, queries, &got.dq, &clean.dq, &exact.dq),
        ("dk", case.key_heads, case.head_dim, keys, &got.dk, &clean.dk, &exact.dk),
        ("dv", case.key_heads, case.value_dim, keys, &got.dv, &clean.dv, &exact.dv),
    ] {
        for at in 0..got.len() {
            let (batch, row, head) =
                (at / (columns * heads * rows), at / (columns * heads) % rows, at / columns % heads);
            let never = batch != blemish.batch
                || if name == "dq" {
                    head != blemish.head || row != blemish.row
                } else {
                    head != blemish.head / group
                };
            let hidden = !exact[at].is_finite() && got[at].is_finite();
            if hidden || never && got[at].to_bits() != clean[at].to_bits() {
                let (got, clean, exact) = (got[at], clean[at], exact[at]);
                return Err(format!(
                    "{name}: element {at} is {got}, without the blemish {clean}, in f64 {exact}: {blemish:?}"
                ));
            }
        }
    }
    Ok(())
}

#[test]
fn a_blemish_of_d_o_reaches_its_row_of_dq_and_no_other_head() {
    let cases = Cases::fitted(|mut case| {
        case.placement = Placement::Padded;
        (case.amplitude, case.logit_shift) = (1.0, 0.0);
        without_ranges_behind_parts(&mut case);
        let elements = case.batches * case.query_heads * case.query_rows * case.key_rows;
        case.gradients.as_mut()?.mode = Mode::Deterministic;
        (elements > 0 && !case.packed).then_some(case)
    });
    let cases = cases.extended().with_fewer_heads();
    check_all("nan-do", 40, cases, reaches_the_gradients_that_depend_on_it);
}
