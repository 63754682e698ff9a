//! Dynamic loss scaling by the rules of `torch.amp.GradScaler`.

use super::{DeviceTensor, Result, Scanned, TrainingError, multiply};
use crate::device::Device;
use crate::driver::Stream;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Scales the loss so that small gradients of 16 bits are not 0, and finds the scale by itself.
///
/// In a step of training, for each optimizer: [`GradScaler::scale`] times the loss goes into the backward,
/// [`GradScaler::unscale`] divides its gradients by the scale again, [`GradScaler::step`] says whether the
/// optimizer may take its step; and after all of them [`GradScaler::update`] chooses the scale of the next
/// one. An optimizer is a number of the caller's choice.
///
/// The rules, which are those of PyTorch 2 (`torch/amp/grad_scaler.py` and its kernel): a gradient that is
/// not finite has the step of its optimizer left out, the scale multiplied by `backoff_factor`, and the count
/// of clean steps start again. After `growth_interval` clean steps one after the other the scale is
/// multiplied by `growth_factor`, unless that is not finite, and the count starts again. Products are made in
/// f64 and rounded to f32.
///
/// ```
/// use finite_attention::training::GradScaler;
/// let mut scaler = GradScaler::default();
/// assert_eq!(scaler.scale(), 65536.0);
/// scaler.note_unscaled(0, true)?; // where gradients were unscaled by other code
/// assert!(!scaler.step(0)?); // the optimizer leaves this step out
/// scaler.update()?;
/// assert_eq!(scaler.scale(), 32768.0);
/// # Ok::<(), finite_attention::training::TrainingError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GradScaler {
    state: GradScalerState,
    optimizers: BTreeMap<usize, Optimizer>,
}

/// All that a scaler is between two steps of training: what a checkpoint has of it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct GradScalerState {
    /// What the loss is multiplied by.
    pub scale: f32,
    /// What the scale is multiplied by after clean steps: above 1.
    pub growth_factor: f64,
    /// What it is multiplied by where something was not finite: above 0 and below 1.
    pub backoff_factor: f64,
    /// Clean steps before the scale grows: at least 1.
    pub growth_interval: u32,
    /// Clean steps since it last changed.
    pub growth_tracker: u32,
}

impl Default for GradScalerState {
    /// 2^16, twice as much after 2000 clean steps, half of it after another one.
    fn default() -> Self {
        GradScalerState {
            scale: 65536.0,
            growth_factor: 2.0,
            backoff_factor: 0.5,
            growth_interval: 2000,
            growth_tracker: 0,
        }
    }
}

/// What an optimizer has done since the last update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Optimizer {
    found_non_finite: bool,
    has_stepped: bool,
}

impl GradScaler {
    /// A scaler in this state.
    ///
    /// # Errors
    /// [`TrainingError::Number`] for numbers that make no sense.
    pub fn new(state: GradScalerState) -> Result<Self> {
        let number = |argument, expected, got| Err(TrainingError::Number { argument, expected, got });
        let GradScalerState { scale, growth_factor, backoff_factor, growth_interval, .. } = state;
        if !(scale >= 0.0 && scale.is_finite()) {
            return number("scale", "a finite number of at least 0", f64::from(scale));
        }
        if !(growth_factor > 1.0 && growth_factor.is_finite()) {
            return number("growth_factor", "a finite number above 1", growth_factor);
        }
        if !(backoff_factor > 0.0 && backoff_factor < 1.0) {
            return number("backoff_factor", "a number above 0 and below 1", backoff_factor);
        }
        if growth_interval == 0 {
            return number("growth_interval", "at least 1", 0.0);
        }
        Ok(GradScaler { state, optimizers: BTreeMap::new() })
    }

    /// What the loss, or the gradient that a backward starts from, is to be multiplied by.
    pub fn scale(&self) -> f32 {
        self.state.scale
    }

    /// What gradients are to be multiplied by: `1 / scale`, made in f64 and rounded.
    pub fn inverse_scale(&self) -> f32 {
        (1.0 / f64::from(self.state.scale)) as f32
    }

    /// What a checkpoint has of it.
    pub fn state(&self) -> GradScalerState {
        self.state
    }

    /// Divides the gradients of an optimizer by the scale, in place, one pass over each, and notes whether
    /// all were finite. Returns what was not, by the names of the tensors: with the values as they were
    /// before.
    ///
    /// # Errors
    /// [`TrainingError::Order`] the second time since [`GradScaler::update`], and after [`GradScaler::step`];
    /// and what [`multiply`] refuses, which leaves the tensors before unscaled.
    ///
    /// # Safety
    /// As [`multiply`], of each.
    pub unsafe fn unscale(
        &mut self,
        device: &Device,
        optimizer: usize,
        gradients: &[DeviceTensor],
        stream: Stream,
    ) -> Result<Vec<(String, Scanned)>> {
        self.check_unscale(optimizer)?;
        // What is wrong with one of them is to be known before the first is changed.
        gradients.iter().try_for_each(|tensor| tensor.params(true).map(|_| ()))?;
        let factor = self.inverse_scale();
        let mut found = Vec::new();
        for tensor in gradients {
            // SAFETY: passed on to the caller.
            let scanned = unsafe { multiply(device, tensor, factor, stream) }?;
            if !scanned.is_finite() {
                found.push((tensor.name.clone(), scanned));
            }
        }
        self.note_unscaled(optimizer, !found.is_empty())?;
        Ok(found)
    }

    /// Notes that the gradients of an optimizer were unscaled by other code, and whether it found one that
    /// was not finite.
    ///
    /// # Errors
    /// [`TrainingError::Order`], as [`GradScaler::unscale`].
    pub fn note_unscaled(&mut self, optimizer: usize, found_non_finite: bool) -> Result<()> {
        self.check_unscale(optimizer)?;
        self.optimizers.insert(optimizer, Optimizer { found_non_finite, has_stepped: false });
        Ok(())
    }

    fn check_unscale(&self, optimizer: usize) -> Result<()> {
        let (call, expected) = ("unscale", "one call for each optimizer, before its step");
        let got = match self.optimizers.get(&optimizer) {
            None => return Ok(()),
            Some(Optimizer { has_stepped: false, .. }) => "a second call since the last update",
            Some(Optimizer { has_stepped: true, .. }) => "a call after its step",
        };
        Err(TrainingError::Order { call, expected, got })
    }

    /// Whether an optimizer may take its step: not if a gradient of it was not finite.
    ///
    /// # Errors
    /// [`TrainingError::Order`] before its gradients were unscaled, and the second time since
    /// [`GradScaler::update`].
    pub fn step(&mut self, optimizer: usize) -> Result<bool> {
        let call = "step";
        match self.optimizers.get_mut(&optimizer) {
            None => {
                let (expected, got) = ("gradients that were unscaled", "a call before unscale");
                Err(TrainingError::Order { call, expected, got })
            }
            Some(Optimizer { has_stepped: true, .. }) => {
                let (expected, got) =
                    ("one call for each optimizer", "a second call since the last update");
                Err(TrainingError::Order { call, expected, got })
            }
            Some(known) => {
                known.has_stepped = true;
                Ok(!known.found_non_finite)
            }
        }
    }

    /// Ends a step of training: chooses the scale of the next one, which it returns.
    ///
    /// # Errors
    /// [`TrainingError::Order`] if no gradients were unscaled since the last one.
    pub fn update(&mut self) -> Result<f32> {
        if self.optimizers.is_empty() {
            let (call, expected) = ("update", "at least one optimizer whose gradients were unscaled");
            return Err(TrainingError::Order { call, expected, got: "none" });
        }
        let found = self.optimizers.values().any(|optimizer| optimizer.found_non_finite);
        let state = &mut self.state;
        if found {
            state.scale = (f64::from(state.scale) * state.backoff_factor) as f32;
            state.growth_tracker = 0;
        } else if state.growth_tracker + 1 >= state.growth_interval {
            let grown = (f64::from(state.scale) * state.growth_factor) as f32;
            if grown.is_finite() {
                state.scale = grown;
            }
            state.growth_tracker = 0;
        } else {
            state.growth_tracker += 1;
        }
        self.optimizers.clear();
        Ok(self.state.scale)
    }
}
