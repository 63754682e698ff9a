//! Every kernel of the zoo is found, for the right reason and at the right line of Rust; what ships is clean under
//! many schedules.

use finite_attention::check::Case;
use finite_attention::driver::emulated::Schedule;
use finite_attention_tests::device::{emulated, emulated_arch, schedule_count};
use finite_attention_tests::ptx::{Ptx, spec};
use finite_attention_tests::sources::{Place, goes_through};
use finite_attention_tests::verdict::{Verdict, judge, judge_sharing, options, schedules};
use finite_attention_tests::zoo::{FAMILIES, Family, Mutant, described};
use std::collections::BTreeSet;

/// All of a family are found, at least so many. Nothing is done on a GPU, which checks nothing.
fn all_are_found(Family { mutants, .. }: Family, least: usize) {
    if emulated_arch().is_none() {
        return;
    }
    let mutants = mutants();
    assert!(mutants.len() >= least, "{} of {least}", mutants.len());
    // In the same cases, what ships is clean.
    let mut healthy = Vec::new();
    for mutant in &mutants {
        let Mutant { kernel, case, multiprocessors, .. } = mutant;
        if !healthy.contains(&(kernel, case, multiprocessors)) {
            let images = Ptx::shipped(kernel).images();
            let verdict = mutant.judge(&emulated(spec(kernel).arch, images, options(Schedule::Latest)));
            assert!(matches!(verdict, Verdict::Clean), "{kernel}, {case:?}: {}", described(&verdict));
            healthy.push((kernel, case, multiprocessors));
        }
    }
    let complaints: Vec<String> = mutants.iter().filter_map(Mutant::complaint).collect();
    assert!(complaints.is_empty(), "{}", complaints.join("\n\n"));
}

#[test]
fn mutants_of_the_forward_for_sm80_are_found() {
    all_are_found(FAMILIES[0], 30);
}

#[test]
fn mutants_of_the_backward_for_sm80_are_found() {
    all_are_found(FAMILIES[1], 28);
}

#[test]
fn mutants_of_the_forward_for_hopper_are_found() {
    all_are_found(FAMILIES[2], 60);
}

#[test]
fn mutants_of_the_backward_for_hopper_are_found() {
    all_are_found(FAMILIES[3], 92);
}

#[test]
fn mutants_of_the_backward_for_hopper_with_wide_heads_are_found() {
    all_are_found(FAMILIES[4], 11);
}

#[test]
fn mutants_of_what_combines_ranges_are_found() {
    all_are_found(FAMILIES[5], 5);
}

#[test]
fn mutants_of_dynamic_masks_are_found() {
    all_are_found(FAMILIES[6], 9);
}

#[test]
fn mutants_of_the_gradient_of_the_bias_are_found() {
    all_are_found(FAMILIES[7], 12);
}

#[test]
fn each_mutant_has_a_name_of_its_own() {
    let slugs: Vec<String> = FAMILIES.iter().flat_map(Family::all).map(|mutant| mutant.slug()).collect();
    assert_eq!(slugs.iter().collect::<BTreeSet<_>>().len(), slugs.len());
    assert!(
        slugs.iter().any(|slug| {
            slug == "forward_bf16_d64_sm80.tiles_are_used_without_a_wait_for_their_copies"
        })
    );
}

/// A tool's report of a mutant counts only beside what it says of the kernel as it ships.
#[test]
fn each_kernel_of_a_mutant_is_there_as_it_ships() {
    for family in FAMILIES {
        let (shipped, mutants): (Vec<Mutant>, Vec<Mutant>) =
            family.all().into_iter().partition(|mutant| mutant.name == "as it ships");
        assert_eq!(mutants.len(), (family.mutants)().len());
        for mutant in mutants {
            let same = shipped.iter().filter(|shipped| shipped.kernel == mutant.kernel);
            assert_eq!(same.count(), 1, "{}", mutant.slug());
        }
        assert!(
            shipped.iter().all(|shipped| shipped.ptx().lines() == Ptx::shipped(shipped.kernel).lines())
        );
    }
}

/// The rows of a page's tables by the first word of their section's heading: kernel and first cell, of sections that
/// are named after a kernel; of the section of those not covered, the first two cells.
fn rows(page: &str) -> [Vec<(String, String)>; 2] {
    let [mut measured, mut uncovered] = [Vec::new(), Vec::new()];
    let mut section = "";
    for line in page.lines() {
        if let Some(heading) = line.strip_prefix("## ") {
            section = heading.split(' ').next().unwrap_or_default();
        }
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        match (section, &cells[..]) {
            (_, ["", "mutant" | "as it ships" | "kernel" | "--", ..]) => {}
            ("Not", ["", kernel, name, ""]) => uncovered.push((kernel.to_string(), name.to_string())),
            (kernel, ["", name, _, ..]) if kernel.contains("_sm") => {
                measured.push((kernel.to_owned(), name.to_string()));
            }
            _ => {}
        }
    }
    [measured, uncovered]
}

/// The page has a row for each mutant that was measured, and names all others.
#[test]
fn the_page_of_compute_sanitizer_says_which_mutants_it_covers() {
    let page = include_str!("../../docs/compute-sanitizer.md");
    let [measured, uncovered] = rows(page);
    let mutants = FAMILIES.iter().flat_map(|family| (family.mutants)());
    let zoo: BTreeSet<_> =
        mutants.map(|mutant| (mutant.kernel.to_owned(), mutant.name.to_owned())).collect();
    let page_has: BTreeSet<_> = measured.iter().chain(&uncovered).cloned().collect();
    let missing: Vec<_> = zoo.difference(&page_has).collect();
    assert!(missing.is_empty(), "neither measured nor among those not covered: {missing:#?}");
    let gone: Vec<_> = page_has.difference(&zoo).collect();
    assert!(gone.is_empty(), "no longer in the zoo: {gone:#?}");
    assert_eq!(measured.len() + uncovered.len(), zoo.len(), "a mutant stands on the page twice");
    let counts = format!("{} of the {} mutants of the zoo", measured.len(), zoo.len());
    assert!(page.contains(&counts), "expected `{counts}`");
    assert!(page.contains(&format!("The other {}, ", uncovered.len())), "{} others", uncovered.len());
}

/// What ships is clean in all cases, under as many schedules as `FATTN_SCHEDULES` says.
#[test]
fn the_kernels_that_ship_are_clean_under_many_schedules() {
    if emulated_arch().is_none() {
        return;
    }
    let kernels =
        FAMILIES.iter().flat_map(|family| family.kernels.iter().map(|kernel| (*kernel, family.cases)));
    let clean = |(kernel, cases): (&str, fn(&str) -> Vec<Case>)| {
        let images = Ptx::shipped(kernel).images();
        for schedule in schedules(schedule_count().saturating_sub(2)) {
            for case in cases(kernel) {
                let verdict = judge(kernel, images.clone(), &case, schedule);
                let is_clean = matches!(verdict, Verdict::Clean);
                assert!(is_clean, "{kernel}, {schedule:?}, {case:?}: {}", described(&verdict));
            }
            let verdict = judge_sharing(kernel, images.clone(), &cases(kernel)[0], schedule);
            assert!(
                matches!(verdict, Verdict::Clean),
                "{kernel}, {schedule:?}: {}",
                described(&verdict)
            );
        }
    };
    std::thread::scope(|scope| {
        for kernel in kernels {
            scope.spawn(move || clean(kernel));
        }
    });
}

/// Not on a GPU either: the source need not be there.
#[test]
fn source_lines_are_found_by_their_text() {
    if emulated_arch().is_none() {
        return;
    }
    let file = "tests/tests/zoo.rs".to_owned();
    let first = [Place { file: file.clone(), line: 1 }];
    assert!(first[0].text().starts_with("//! Every kernel of the zoo"));
    assert!(goes_through(&first, &["Every", "tests/zoo.rs: kernel"]));
    assert!(!goes_through(&first, &["Every", "other.rs: kernel"]));
    assert_eq!(Place { file, line: 0 }.text(), "");
}
