//! Options of a dynamic mask.

use super::Task;
use anyhow::{Result, ensure};
use clap::{Args, ValueEnum};
use finite_attention::problem::{DynamicMask, DynamicRule, DynamicWay};

/// Which keys a bias chooses.
#[derive(Args, Clone, Copy, Debug, Default, PartialEq)]
pub struct DynamicArguments {
    /// Only the keys that the bias chooses: the N largest of each row, or those above 0. What --causal,
    /// --window and the tensor mask hide is not chosen.
    #[arg(long, value_name = "topk:N|relu", value_parser = rule)]
    dynamic_mask: Option<DynamicRule>,
    /// Keys that are kept or dropped together, if more than half of them are chosen; 1 if not given.
    #[arg(long, value_name = "N", requires = "dynamic_mask")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    dynamic_block: Option<u32>,
    /// Whether others than the chosen keys are masked, or the chosen ones are gathered first; what costs less
    /// if not given.
    #[arg(long, requires = "dynamic_mask")]
    dynamic_way: Option<Way>,
}

/// How attention goes about it.
#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
enum Way {
    Mask,
    Gather,
}

impl DynamicArguments {
    /// The mask, if there is one.
    pub fn mask(&self) -> Option<DynamicMask> {
        let way = self.dynamic_way.map(|way| match way {
            Way::Mask => DynamicWay::Mask,
            Way::Gather => DynamicWay::Gather,
        });
        let block_size = self.dynamic_block.unwrap_or(1) as usize;
        self.dynamic_mask.map(|rule| DynamicMask { rule, block_size, way })
    }
}

impl Task<'_> {
    /// For commands that have no dynamic masks.
    pub fn refuse_dynamic_mask(&self, command: &str) -> Result<()> {
        let is_there = self.dynamic_mask.is_some();
        ensure!(!is_there, "--dynamic-mask: expected none, as {command} has no dynamic masks, got one");
        Ok(())
    }
}

/// `topk:N` or `relu`.
fn rule(text: &str) -> Result<DynamicRule, String> {
    let window = text.strip_prefix("topk:").map(str::parse::<usize>);
    match (text, window) {
        ("relu", _) => Ok(DynamicRule::Relu),
        (_, Some(Ok(window))) if window > 0 => Ok(DynamicRule::TopK { window }),
        _ => Err(format!("expected topk:N with N of at least 1, or relu, got {text}")),
    }
}
