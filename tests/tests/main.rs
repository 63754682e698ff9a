//! The properties, a file each.
//!
//! One program, since each takes long to link. Files have paths, so that those in folders are found from each of them.

#[path = "accuracy.rs"]
mod accuracy;
#[path = "agreement/main.rs"]
mod agreement;
#[path = "bias_gradient.rs"]
mod bias_gradient;
#[path = "completion.rs"]
mod completion;
#[path = "context_parallel.rs"]
mod context_parallel;
#[path = "dead_rows.rs"]
mod dead_rows;
#[path = "dropout.rs"]
mod dropout;
#[path = "dynamic.rs"]
mod dynamic;
#[path = "features_range.rs"]
mod features_range;
#[path = "forward_range.rs"]
mod forward_range;
#[path = "gradients.rs"]
mod gradients;
#[path = "guards.rs"]
mod guards;
#[path = "guards_mutants.rs"]
mod guards_mutants;
#[path = "kernels.rs"]
mod kernels;
#[path = "large_logits.rs"]
mod large_logits;
#[path = "large_values.rs"]
mod large_values;
#[path = "long_sequences.rs"]
mod long_sequences;
#[path = "mask_tiles.rs"]
mod mask_tiles;
#[path = "msda/main.rs"]
mod msda;
#[path = "mutants.rs"]
mod mutants;
#[path = "mutations.rs"]
mod mutations;
#[path = "nan_propagation.rs"]
mod nan_propagation;
#[path = "origins.rs"]
mod origins;
#[path = "pack_gqa.rs"]
mod pack_gqa;
#[path = "partial.rs"]
mod partial;
#[path = "poison.rs"]
mod poison;
#[path = "precision.rs"]
mod precision;
#[path = "precision_gradients.rs"]
mod precision_gradients;
#[path = "precision_mixed.rs"]
mod precision_mixed;
#[path = "range.rs"]
mod range;
#[path = "repeatable.rs"]
mod repeatable;
#[path = "score_features.rs"]
mod score_features;
#[path = "softcap.rs"]
mod softcap;
#[path = "splits.rs"]
mod splits;
#[path = "stretches.rs"]
mod stretches;
#[path = "wide_range.rs"]
mod wide_range;
#[path = "zoo.rs"]
mod zoo;
