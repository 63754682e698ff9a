//! The pinned tables under `kernels-gpu/pins`: what the kernels contain and need, compared on every
//! build.
//!
//! `convergent.json` must match exactly. `ptxas.json` is a ratchet: a figure may only improve, and a
//! better one is pinned with `--bless` in the same commit. The number of machine instructions, which small
//! changes anywhere move, may grow by half a percent: a switch that is off costs nothing, and stays so.
//! Kernels for Hopper must not spill with their switches off, pinned or not.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::lint::Counts;
use super::ptxas::Resources;
use crate::workspace::root;

/// Convergent instructions per kernel.
pub type Convergent = BTreeMap<String, Counts>;

/// What ptxas says, per kernel and device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Assembled {
    /// Version that the figures are from; another version's are not compared.
    pub ptxas: String,
    /// Variant (a kernel as it is compiled, or with switches on), then device, then figures.
    pub kernels: BTreeMap<String, BTreeMap<String, Resources>>,
}

fn dir() -> PathBuf {
    root().join("kernels-gpu/pins")
}

fn read<T: DeserializeOwned + Default>(path: &Path) -> Result<T> {
    match fs::read_to_string(path) {
        Ok(text) => {
            serde_json::from_str(&text).with_context(|| format!("cannot read {}", path.display()))
        }
        Err(_) => Ok(T::default()),
    }
}

fn write(path: &Path, value: &impl Serialize) -> Result<()> {
    fs::create_dir_all(dir())?;
    fs::write(path, serde_json::to_string_pretty(value)? + "\n")?;
    Ok(())
}

/// Compares the counts with the pinned ones, or pins them. `partial`: other kernels exist and were not
/// built.
///
/// # Errors
/// When the pinned table cannot be read or written. Differences are returned, a line each.
pub fn convergent(found: &Convergent, bless: bool, partial: bool) -> Result<Vec<String>> {
    let path = dir().join("convergent.json");
    if bless {
        let mut pinned: Convergent = if partial { read(&path)? } else { Convergent::default() };
        pinned.extend(found.clone());
        write(&path, &pinned)?;
        return Ok(vec![]);
    }
    let pinned: Convergent = read(&path)?;
    let missing = found.keys().filter(|kernel| !pinned.contains_key(*kernel));
    let mut faults = not_pinned("convergent.json", missing);
    for (kernel, counts) in found {
        match pinned.get(kernel) {
            Some(pin) if pin != counts => faults.push(format!("{kernel}: {}", difference(pin, counts))),
            _ => {}
        }
    }
    if !partial {
        let gone = pinned.keys().filter(|kernel| !found.contains_key(*kernel));
        faults.extend(
            gone.map(|kernel| format!("{kernel}: pinned in convergent.json but no such kernel")),
        );
    }
    Ok(faults)
}

/// One line for all kernels that a table lacks.
fn not_pinned<'a>(table: &str, kernels: impl Iterator<Item = &'a String>) -> Vec<String> {
    let names: Vec<_> = kernels.map(String::as_str).collect();
    if names.is_empty() { vec![] } else { vec![format!("not in {table} yet: {}", names.join(", "))] }
}

fn difference(pinned: &Counts, found: &Counts) -> String {
    let mut names: Vec<_> = pinned.keys().chain(found.keys()).collect();
    names.sort();
    names.dedup();
    let count = |counts: &Counts, name: &String| counts.get(name).copied().unwrap_or(0);
    let differing = names.into_iter().filter(|name| count(pinned, name) != count(found, name));
    let texts = differing
        .map(|name| format!("{name} pinned {} found {}", count(pinned, name), count(found, name)));
    texts.collect::<Vec<_>>().join(", ")
}

/// Compares ptxas figures with the pinned ones, or pins them.
///
/// # Errors
/// When the pinned table cannot be read or written. Figures that got worse, and spills on Hopper, are
/// returned, a line each; better ones are printed.
pub fn assembled(found: &Assembled, bless: bool, partial: bool) -> Result<Vec<String>> {
    let path = dir().join("ptxas.json");
    let spilled = spilled(found);
    if !spilled.is_empty() {
        return Ok(spilled);
    }
    if bless {
        // A table of other figures is no hindrance to a new one.
        let mut pinned: Assembled = if partial { read(&path)? } else { Assembled::default() };
        pinned.ptxas.clone_from(&found.ptxas);
        pinned.kernels.extend(found.kernels.clone());
        write(&path, &pinned)?;
        return Ok(vec![]);
    }
    let pinned: Assembled = read(&path)?;
    if pinned.ptxas != found.ptxas && !pinned.kernels.is_empty() {
        println!(
            "ptxas {} is at hand, figures are pinned for {}: not compared",
            found.ptxas, pinned.ptxas
        );
        return Ok(vec![]);
    }
    let (worse, better) = compare(&pinned, found);
    if !better.is_empty() {
        println!("better than pinned, re-pin with --bless:\n  {}", better.join("\n  "));
    }
    Ok(worse)
}

/// A line for each kernel for Hopper that spills as it is compiled.
fn spilled(found: &Assembled) -> Vec<String> {
    let mut lines = Vec::new();
    for (kernel, devices) in found.kernels.iter().filter(|(kernel, _)| !kernel.contains('+')) {
        if let Some(bytes) = devices.get("sm_90a").map(|now| now.spill_bytes).filter(|&bytes| bytes > 0)
        {
            lines.push(format!(
                "{kernel} on sm_90a: {bytes} bytes are spilled, which --bless does not pin"
            ));
        }
    }
    lines
}

/// Lines for what is worse or not pinned, and for what is better.
fn compare(pinned: &Assembled, found: &Assembled) -> (Vec<String>, Vec<String>) {
    let pin_of = |kernel: &String, device: &String| pinned.kernels.get(kernel)?.get(device);
    let is_pinned = |kernel: &String| found.kernels[kernel].keys().all(|d| pin_of(kernel, d).is_some());
    let mut worse = not_pinned("ptxas.json", found.kernels.keys().filter(|kernel| !is_pinned(kernel)));
    let mut better = Vec::new();
    for (kernel, devices) in &found.kernels {
        for (device, now) in devices {
            let Some(pin) = pin_of(kernel, device) else { continue };
            for ((name, now), (_, pin)) in now.figures().into_iter().zip(pin.figures()) {
                let line = format!("{kernel} on {device}: {name} pinned {pin} found {now}");
                if now > pin + slack(name, pin) {
                    worse.push(line);
                } else if now < pin {
                    better.push(line);
                }
            }
        }
    }
    (worse, better)
}

/// How far a figure may be above the pinned one.
fn slack(figure: &str, pinned: u32) -> u32 {
    if figure == "instructions" { pinned / 200 } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(registers: u32, spill_bytes: u32) -> Assembled {
        let resources = Resources { registers, spill_bytes, ..Resources::default() };
        let devices = BTreeMap::from([("sm_80".to_owned(), resources)]);
        Assembled { ptxas: "13.0".into(), kernels: BTreeMap::from([("k".to_owned(), devices)]) }
    }

    #[test]
    fn figures_may_only_improve() {
        assert_eq!(compare(&table(128, 0), &table(128, 0)), (vec![], vec![]));
        let (worse, better) = compare(&table(128, 0), &table(120, 8));
        assert_eq!(worse, ["k on sm_80: spill_bytes pinned 0 found 8"]);
        assert_eq!(better, ["k on sm_80: registers pinned 128 found 120"]);
    }

    #[test]
    fn instructions_may_grow_by_half_a_percent() {
        let table = |instructions| {
            let mut table = table(128, 0);
            let devices = table.kernels.values_mut().next().unwrap();
            devices.values_mut().for_each(|figures| figures.instructions = instructions);
            table
        };
        assert_eq!(compare(&table(7000), &table(7035)), (vec![], vec![]));
        let (worse, better) = compare(&table(7000), &table(7036));
        assert_eq!(worse, ["k on sm_80: instructions pinned 7000 found 7036"]);
        assert!(better.is_empty());
        let (worse, better) = compare(&table(7000), &table(6999));
        assert_eq!(better, ["k on sm_80: instructions pinned 7000 found 6999"]);
        assert!(worse.is_empty());
    }

    #[test]
    fn kernels_for_hopper_must_not_spill() {
        let on = |device: &str, spill_bytes| {
            let resources = Resources { spill_bytes, ..Resources::default() };
            let devices = BTreeMap::from([(device.to_owned(), resources)]);
            Assembled { kernels: BTreeMap::from([("k".to_owned(), devices)]), ..Assembled::default() }
        };
        assert!(spilled(&on("sm_90a", 0)).is_empty() && spilled(&on("sm_80", 8)).is_empty());
        assert_eq!(
            spilled(&on("sm_90a", 8)),
            ["k on sm_90a: 8 bytes are spilled, which --bless does not pin"]
        );
        let mut switched = on("sm_90a", 8);
        let devices = switched.kernels.remove("k").unwrap();
        switched.kernels.insert("k+softcap".into(), devices);
        assert!(spilled(&switched).is_empty(), "it is pinned");
    }

    #[test]
    fn a_kernel_that_is_not_pinned_is_a_fault() {
        assert_eq!(compare(&Assembled::default(), &table(1, 0)).0.len(), 1);
    }

    #[test]
    fn a_copied_barrier_is_named() {
        let counts = |n| Counts::from([("bar.sync".to_owned(), n)]);
        assert_eq!(difference(&counts(2), &counts(3)), "bar.sync pinned 2 found 3");
    }
}
