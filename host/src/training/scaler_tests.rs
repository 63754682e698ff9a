//! The scaler against what it is to do, written down again, and against recorded numbers.

use super::{GradScaler, GradScalerState, TrainingError};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// What is to happen, as a list of rules: exponents of a scale of powers of two, and clean steps in a row.
fn expected(found: &[bool], interval: usize) -> Vec<f32> {
    let mut scales = Vec::new();
    for end in 1..=found.len() {
        let mut exponent = 16i32;
        let mut clean = 0;
        for &bad in &found[..end] {
            clean = if bad { 0 } else { clean + 1 };
            let grows = clean == interval;
            exponent += i32::from(grows && exponent < 127) - i32::from(bad);
            clean %= interval;
        }
        scales.push(exponent);
    }
    scales.into_iter().map(|exponent| 2f64.powi(exponent) as f32).collect()
}

fn run(scaler: &mut GradScaler, bad: bool) -> f32 {
    scaler.note_unscaled(3, bad).unwrap();
    assert_eq!(scaler.step(3).unwrap(), !bad);
    scaler.update().unwrap()
}

#[test]
fn random_steps_with_planted_infinities_and_nan_are_as_the_rules_say() {
    for (seed, interval, rate) in [(1, 4, 0.05), (2, 2, 0.3), (3, 1, 0.02), (4, 7, 0.5), (5, 2, 0.5)] {
        let mut random = StdRng::seed_from_u64(seed);
        let state = GradScalerState { growth_interval: interval, ..GradScalerState::default() };
        let mut scaler = GradScaler::new(state).unwrap();
        let mut found = Vec::new();
        let mut scales = Vec::new();
        for step in 0..2000 {
            // Gradients of a step, one of which is sometimes not finite.
            let mut gradients: Vec<f32> = (0..8).map(|_| random.random_range(-1.0..1.0)).collect();
            if random.random_bool(rate) {
                let planted = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY][random.random_range(0..3)];
                gradients[random.random_range(0..8)] = planted;
            }
            found.push(gradients.iter().any(|gradient| !gradient.is_finite()));
            // A checkpoint in between changes nothing.
            if step % 97 == 0 {
                scaler = GradScaler::new(scaler.state()).unwrap();
            }
            scales.push(run(&mut scaler, found[step]));
        }
        assert_eq!(scales, expected(&found, interval as usize), "seed {seed}");
    }
}

/// What `torch.amp.GradScaler` (2.x) is documented to do with its defaults.
#[test]
fn the_default_scale_doubles_after_two_thousand_clean_steps_and_halves_at_once() {
    let mut scaler = GradScaler::default();
    for step in 1..=2000 {
        let scale = run(&mut scaler, false);
        assert_eq!(scale, if step < 2000 { 65536.0 } else { 131072.0 });
    }
    assert_eq!(scaler.state().growth_tracker, 0);
    (0..1999).for_each(|_| assert_eq!(run(&mut scaler, false), 131072.0));
    assert_eq!(scaler.state().growth_tracker, 1999);
    assert_eq!(run(&mut scaler, true), 65536.0);
    assert_eq!(scaler.state().growth_tracker, 0);
    assert_eq!(scaler.inverse_scale(), 1.0 / 65536.0);
}

#[test]
fn a_scale_that_would_not_be_finite_stays_and_one_that_falls_reaches_zero() {
    let state = GradScalerState { scale: 2e38, growth_interval: 1, ..GradScalerState::default() };
    let mut scaler = GradScaler::new(state).unwrap();
    assert_eq!(run(&mut scaler, false), 2e38);
    assert_eq!(scaler.state().growth_tracker, 0);
    (0..300).for_each(|_| _ = run(&mut scaler, true));
    assert_eq!((scaler.scale(), scaler.inverse_scale()), (0.0, f32::INFINITY));
}

#[test]
fn one_optimizer_of_several_is_enough_to_back_off_and_skips_its_own_step_alone() {
    let mut scaler = GradScaler::default();
    scaler.note_unscaled(0, false).unwrap();
    scaler.note_unscaled(1, true).unwrap();
    assert_eq!((scaler.step(0).unwrap(), scaler.step(1).unwrap()), (true, false));
    assert_eq!(scaler.update().unwrap(), 32768.0);
}

#[test]
fn calls_out_of_order_are_refused() {
    let mut scaler = GradScaler::default();
    let text = |error: TrainingError| error.to_string();
    let unscale = "unscale: expected one call for each optimizer, before its step, got a";
    assert_eq!(
        text(scaler.step(0).unwrap_err()),
        "step: expected gradients that were unscaled, got a call before unscale"
    );
    assert_eq!(
        text(scaler.update().unwrap_err()),
        "update: expected at least one optimizer whose gradients were unscaled, got none"
    );
    scaler.note_unscaled(0, false).unwrap();
    assert_eq!(
        text(scaler.note_unscaled(0, true).unwrap_err()),
        format!("{unscale} second call since the last update")
    );
    assert!(scaler.step(0).unwrap());
    assert_eq!(
        text(scaler.note_unscaled(0, true).unwrap_err()),
        format!("{unscale} call after its step")
    );
    assert_eq!(
        text(scaler.step(0).unwrap_err()),
        "step: expected one call for each optimizer, got a second call since the last update"
    );
    scaler.update().unwrap();
    scaler.note_unscaled(0, false).unwrap();
}

#[test]
fn states_that_make_no_sense_are_refused_and_others_come_back_as_they_were() {
    let new = |change: fn(&mut GradScalerState)| {
        let mut state = GradScalerState::default();
        change(&mut state);
        GradScaler::new(state).unwrap_err().to_string()
    };
    assert_eq!(new(|s| s.scale = f32::NAN), "scale: expected a finite number of at least 0, got NaN");
    assert_eq!(new(|s| s.growth_factor = 1.0), "growth_factor: expected a finite number above 1, got 1");
    assert_eq!(
        new(|s| s.backoff_factor = 1.0),
        "backoff_factor: expected a number above 0 and below 1, got 1"
    );
    assert_eq!(new(|s| s.growth_interval = 0), "growth_interval: expected at least 1, got 0");
    let state = GradScalerState { scale: 3.0, growth_tracker: 17, ..GradScalerState::default() };
    assert_eq!(GradScaler::new(state).unwrap().state(), state);
}
