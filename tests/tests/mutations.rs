//! Taking a barrier, a wait, an arrival, a fence or a guard out of a kernel shows, or it is written down why not.
//!
//! A sample of what `cargo xtask mutate` tries: every 24th edit, starting elsewhere at every run of another
//! `FATTN_SEED`. `FATTN_MUTATIONS=all` tries all, `FATTN_MUTATIONS=through:visited|mask_map` those whose source goes
//! through a line with one of these texts, in the file or in the line, `FATTN_MUTATIONS=lines:1960..2400` those of
//! these lines of the PTX.

use finite_attention_tests::device::emulated_arch;
use finite_attention_tests::property::seed_from_environment;
use finite_attention_tests::ptx::Ptx;
use finite_attention_tests::shapes::cases;
use finite_attention_tests::sources::goes_through;
use finite_attention_tests::sweep::{Class, EXPLANATIONS, Edit, KERNELS, edits, explanation, verdict};
use finite_attention_tests::verdict::{Shown, Verdict};
use std::collections::BTreeSet;
use std::ops::Range;

const SAMPLE: usize = 24;

/// Nothing on a GPU, which checks nothing.
fn every_edit_shows_or_is_explained(kernel: &str) {
    if emulated_arch().is_none() {
        return;
    }
    let shipped = Ptx::shipped(kernel);
    let edits = edits(&shipped);
    let classes: BTreeSet<Class> = edits.iter().map(|edit| edit.class).collect();
    assert!(classes.len() >= 4 && edits.len() > 100, "{kernel}: {} edits of {classes:?}", edits.len());
    let asked = std::env::var("FATTN_MUTATIONS").unwrap_or_default();
    let texts: Option<Vec<&str>> =
        asked.strip_prefix("through:").map(|texts| texts.split('|').collect());
    let lines: Option<Range<usize>> = asked.strip_prefix("lines:").map(|lines| {
        let (first, end) = lines.split_once("..").expect("FATTN_MUTATIONS: expected lines:FIRST..END");
        let line = |text: &str| text.parse().expect("FATTN_MUTATIONS: expected a number");
        line(first)..line(end)
    });
    let is_wanted = |edit: &&Edit| {
        let places = &edit.site.places;
        texts.as_ref().is_none_or(|texts| texts.iter().any(|text| goes_through(places, &[text])))
            && lines.as_ref().is_none_or(|lines| lines.contains(&edit.site.line))
    };
    let first = (seed_from_environment() % SAMPLE as u64) as usize;
    let (first, step) =
        if asked == "all" || texts.is_some() || lines.is_some() { (0, 1) } else { (first, SAMPLE) };
    let cases = cases(kernel);
    let sample = edits.iter().skip(first).step_by(step).filter(is_wanted);
    let tried = sample.filter(|edit| explanation(kernel, edit).is_none());
    let mut shown = Shown::default();
    let unseen: Vec<_> = tried
        .filter(|edit| matches!(verdict(kernel, &shipped, edit, &cases, &mut shown), Verdict::Clean))
        .map(|edit| &edit.site)
        .collect();
    let control = shown.control(kernel, &shipped.images(), &cases);
    assert!(matches!(control, Verdict::Clean), "what ships is not clean: {kernel}: {control:?}");
    assert!(unseen.is_empty(), "{kernel}: nothing shows that these are gone: {unseen:#?}");
}

/// Nothing on a GPU: the source need not be there.
#[test]
fn what_is_explained_is_an_edit() {
    if emulated_arch().is_none() {
        return;
    }
    let of_kernel = |kernel: &&'static str| {
        edits(&Ptx::shipped(kernel)).into_iter().filter_map(|edit| explanation(kernel, &edit))
    };
    let explained: Vec<_> = KERNELS.iter().flat_map(of_kernel).collect();
    for known in EXPLANATIONS {
        assert!(explained.contains(&known), "{known:?}");
    }
}

#[test]
fn forward_for_sm80() {
    every_edit_shows_or_is_explained(KERNELS[0]);
}

#[test]
fn backward_for_sm80() {
    every_edit_shows_or_is_explained(KERNELS[1]);
}

#[test]
fn forward_for_hopper() {
    every_edit_shows_or_is_explained(KERNELS[2]);
}

#[test]
fn backward_for_hopper() {
    every_edit_shows_or_is_explained(KERNELS[3]);
}

#[test]
fn forward_of_several_heads_for_hopper() {
    every_edit_shows_or_is_explained(KERNELS[4]);
}
