//! Every kernel of the zoo is found, for the right reason and at the right line of Rust; what ships is clean under
//! many schedules.

use finite_attention::driver::emulated::Schedule;
use finite_attention_tests::device::{emulated, emulated_arch, schedule_count};
use finite_attention_tests::ptx::{Ptx, spec};
use finite_attention_tests::shapes::cases;
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
    all_are_found(FAMILIES[0], 22);
}

#[test]
fn mutants_of_the_backward_for_sm80_are_found() {
    all_are_found(FAMILIES[1], 20);
}

#[test]
fn mutants_of_the_forward_for_hopper_are_found() {
    all_are_found(FAMILIES[2], 55);
}

#[test]
fn mutants_of_the_backward_for_hopper_are_found() {
    all_are_found(FAMILIES[3], 84);
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

/// What ships is clean in all cases, under as many schedules as `FATTN_SCHEDULES` says.
#[test]
fn the_kernels_that_ship_are_clean_under_many_schedules() {
    if emulated_arch().is_none() {
        return;
    }
    let kernels: Vec<&str> = FAMILIES.iter().flat_map(|family| family.kernels).copied().collect();
    let clean = |kernel: &str| {
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
