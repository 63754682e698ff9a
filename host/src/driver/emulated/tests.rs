//! The emulated device with small programs of its own.

use super::*;
use kernels_gpu::abi::{Family, Switch, Switches};

/// A kernel that is not in the table: it lives as long as the process, as those do.
fn kernel(spec: KernelSpec) -> KernelVariant {
    KernelVariant::from(&*Box::leak(Box::new(spec)))
}

fn driver() -> EmulatedDriver {
    EmulatedDriver::new(Arch::Sm80, KernelImages::embedded()).expect("it needs nothing")
}

#[test]
fn bytes_come_back_as_they_were_written() {
    let driver = driver();
    let pointer = driver.allocate(1001).unwrap();
    assert_eq!(pointer % 256, 0);
    let written: Vec<u8> = (0..1001).map(|i| i as u8).collect();
    driver.copy_to_device(pointer, &written).unwrap();
    let mut read = vec![0; 1000];
    driver.copy_to_host(&mut read, pointer + 1, Stream::default()).unwrap();
    assert_eq!(read, written[1..]);
    // SAFETY: allocated above, and nothing is in flight.
    unsafe { driver.free(pointer) }.unwrap();
    assert!(driver.copy_to_host(&mut read, pointer, Stream::default()).is_err());
}

#[test]
fn nothing_can_be_allocated_copied_and_freed() {
    let driver = driver();
    let pointer = driver.allocate(0).unwrap();
    driver.copy_to_device(pointer, &[]).unwrap();
    driver.copy_to_host(&mut [], pointer, Stream::default()).unwrap();
    // SAFETY: allocated above, and nothing is in flight.
    unsafe { driver.free(pointer) }.unwrap();
}

#[test]
fn more_memory_than_there_are_addresses_is_refused() {
    let refused = driver().allocate(usize::MAX).unwrap_err();
    assert!(matches!(refused, Error::OutOfMemory { bytes: usize::MAX, .. }), "{refused}");
}

#[test]
fn more_memory_than_the_host_has_is_refused() {
    let bytes = MAX_BYTES as usize;
    if Vec::<u8>::new().try_reserve_exact(2 * bytes).is_ok() {
        println!("not tested: the host would give {} bytes", 2 * bytes);
        return;
    }
    assert!(matches!(driver().allocate(bytes), Err(Error::OutOfMemory { .. })));
}

#[test]
fn a_device_never_runs_out_of_addresses() {
    let driver = driver();
    let kept = driver.allocate(4).unwrap();
    driver.copy_to_device(kept, &[7; 4]).unwrap();
    for round in 0..2 * MAX_ALLOCATIONS {
        let pointer = driver.allocate(4).unwrap_or_else(|error| panic!("round {round}: {error}"));
        // SAFETY: allocated above, and nothing is in flight.
        unsafe { driver.free(pointer) }.unwrap();
        // A use soon after is found, in every round.
        assert!(driver.copy_to_device(pointer, &[0; 4]).is_err(), "round {round}");
    }
    let mut bytes = [0; 4];
    driver.copy_to_host(&mut bytes, kept, Stream::default()).unwrap();
    assert_eq!(bytes, [7; 4]);
}

#[test]
fn too_many_live_allocations_are_refused_until_one_is_freed() {
    let driver = driver();
    let all: Vec<_> = (0..MAX_ALLOCATIONS).map(|_| driver.allocate(1).unwrap()).collect();
    for _ in 0..2 {
        let refused = driver.allocate(1).unwrap_err().to_string();
        assert!(refused.contains("expected at most 60000 live allocations"), "{refused}");
    }
    // SAFETY: allocated above, and nothing is in flight.
    unsafe { driver.free(all[0]) }.unwrap();
    driver.allocate(1).unwrap();
}

#[test]
fn a_kernel_finds_a_use_soon_after_the_free() {
    let text = ".version 7.8\n.target sm_80\n.address_size 64\n.visible .entry reads(.param .u64 p) {
        .reg .b32 %r0; .reg .b64 %d0; ld.param.u64 %d0, [p]; ld.global.u32 %r0, [%d0]; ret; }\n";
    let reads = kernel(KernelSpec { name: "reads", shared_bytes: 0, ..KERNELS[0] });
    let images = KernelImages::with_override(text).unwrap();
    let driver = EmulatedDriver::new(Arch::Sm80, images).unwrap();
    let allocate_and_free = |count: usize| {
        for _ in 0..count {
            // SAFETY: nothing is in flight.
            unsafe { driver.free(driver.allocate(4).unwrap()) }.unwrap();
        }
    };
    allocate_and_free(MAX_ALLOCATIONS + 1);
    let pointer = driver.allocate(4).unwrap();
    driver.copy_to_device(pointer, &[0; 4]).unwrap();
    // SAFETY: one pointer to 4 bytes is what the kernel takes.
    let launch = || unsafe { driver.launch(reads, 1, &pointer.to_le_bytes(), Stream::default()) };
    launch().unwrap();
    // SAFETY: allocated above, and nothing is in flight.
    unsafe { driver.free(pointer) }.unwrap();
    allocate_and_free(1000);
    let found = launch().unwrap_err().to_string();
    assert!(found.contains("use after free"), "{found}");
}

#[test]
fn a_text_is_parsed_once_for_all_devices() {
    let text =
        ".version 7.8\n.target sm_80\n.address_size 64\n.visible .entry nothing() {\n    ret;\n}\n";
    let nothing = kernel(KernelSpec { name: "nothing", ..KERNELS[0] });
    let module = || {
        let images = KernelImages::with_override(text).unwrap();
        EmulatedDriver::new(Arch::Sm80, images).unwrap().module(nothing).unwrap()
    };
    assert!(Arc::ptr_eq(&module(), &module()));
}

#[test]
fn a_kernel_that_is_not_in_the_table_has_no_regions() {
    let known = KERNELS[0];
    assert!(!regions(&known).is_empty());
    // As much shared memory as it likes, and what it does with it is its own affair.
    let spec = KernelSpec { name: "program", shared_bytes: 64, ..known };
    assert_eq!(regions(&spec), []);
}

#[test]
fn kernels_that_may_start_early_run_together_with_the_one_before() {
    let entry = |name: &str, wait: &str| {
        format!(
            ".visible .entry {name}(.param .u64 p) {{ .reg .b32 %r0; .reg .b64 %d0;
            ld.param.u64 %d0, [p]; {wait} ld.global.u32 %r0, [%d0]; add.u32 %r0, %r0, 1;
            st.global.u32 [%d0], %r0; ret; }}\n"
        )
    };
    let head = ".version 7.8\n.target sm_90\n.address_size 64\n";
    let late = KernelSpec { name: "late", arch: Arch::Sm90a, ..KERNELS[0] };
    let late = KernelSpec { threads: 1, shared_bytes: 0, ..late };
    let early = kernel(KernelSpec { name: "early", family: Family::BackwardConvert, ..late });
    let late = kernel(late);
    for (wait, is_found) in [("griddepcontrol.wait;", false), ("", true)] {
        let text = format!("{head}{}{}", entry("late", ""), entry("early", wait));
        let images = KernelImages::with_override(&text).unwrap();
        let driver = EmulatedDriver::new(Arch::Sm90a, images).unwrap();
        let driver = driver.with_options(Options { trace: true, ..Options::default() });
        let pointer = driver.allocate(4).unwrap();
        let params = pointer.to_le_bytes();
        let queued = |variant, blocks| Queued { variant, blocks, params: &params };
        let launch = |queue: &[Queued<'_>]| {
            driver.copy_to_device(pointer, &[0; 4]).unwrap();
            // SAFETY: one pointer to 4 bytes is what each kernel takes.
            let result = unsafe { driver.launch_in_order(queue, Stream::default()) };
            let mut sum = [0; 4];
            driver.copy_to_host(&mut sum, pointer, Stream::default()).unwrap();
            (result, u32::from_le_bytes(sum))
        };
        let (result, sum) = launch(&[queued(late, 1), queued(early, 1), queued(late, 1)]);
        match result {
            Err(Error::Findings { kernel, findings }) => {
                assert!(is_found && kernel == "early", "{kernel}: {findings:?}");
                assert!(findings.iter().any(|text| text.starts_with("missing wait")), "{findings:?}");
                assert!(findings.iter().any(|text| text.contains(" of late wrote")), "{findings:?}");
            }
            result => assert_eq!((result.is_ok(), is_found, sum), (true, false, 3)),
        }
        let traces = driver.take_traces();
        let names: Vec<&str> = traces.iter().map(|(variant, _)| variant.kernel.name).collect();
        assert_eq!(names, if is_found { &["late", "early"][..] } else { &["late", "early", "late"] });
        // Behind a kernel that does not run there is nothing to wait for.
        let (result, sum) = launch(&[queued(late, 0), queued(early, 1)]);
        assert_eq!((result.is_ok(), sum), (true, 1));
    }
}

#[test]
fn what_is_no_ptx_names_the_kernel_and_the_line() {
    let broken = kernel(KernelSpec { name: "broken", ..KERNELS[0] });
    let header = ".version 7.8\n.target sm_80\n.address_size 64\n";
    let text = format!("{header}.visible .entry broken() {{\n    frobnicate;\n}}\n");
    let images = KernelImages::with_override(&text).unwrap();
    let driver = EmulatedDriver::new(Arch::Sm80, images).unwrap();
    // SAFETY: it cannot start.
    let error = unsafe { driver.launch(broken, 1, &[], Stream::default()) }.unwrap_err().to_string();
    assert!(error.contains("broken") && error.contains("PTX line 5"), "{error}");
}

/// Writes its marker's value, and names itself in what it reports.
const SWITCHED: &str =
    ".version 7.8\n.target sm_80\n.address_size 64\n.visible .entry switched(.param .u64 p) {
    .reg .b32 %r0; .reg .b64 %d0; ld.param.u64 %d0, [p];
    mov.b32 %r0, 0; // specialize softcap
    st.global.u32 [%d0], %r0; ret; }\n";

#[test]
fn variants_of_a_kernel_are_kept_apart() {
    let off = kernel(KernelSpec { name: "switched", threads: 1, shared_bytes: 0, ..KERNELS[0] });
    let on = KernelVariant { switches: Switches::NONE.with(Switch::Softcap), ..off };
    let images = KernelImages::with_override(SWITCHED).unwrap();
    for first in [[off, on], [on, off]] {
        let driver = EmulatedDriver::new(Arch::Sm80, images.clone()).unwrap();
        let driver = driver.with_options(Options { trace: true, ..Options::default() });
        let pointer = driver.allocate(4).unwrap();
        let order = [first, first].concat();
        for &variant in &order {
            // SAFETY: one pointer to 4 bytes is what the kernel takes.
            unsafe { driver.launch(variant, 1, &pointer.to_le_bytes(), Stream::default()) }.unwrap();
            let mut value = [7; 4];
            driver.copy_to_host(&mut value, pointer, Stream::default()).unwrap();
            assert_eq!(value, [u8::from(variant == on), 0, 0, 0], "{variant}");
        }
        let traced: Vec<_> = driver.take_traces().into_iter().map(|(variant, _)| variant).collect();
        assert_eq!(traced, order);
        // SAFETY: what it writes to is refused.
        let found = unsafe { driver.launch(on, 1, &0u64.to_le_bytes(), Stream::default()) };
        let Err(Error::Findings { kernel, .. }) = found else { panic!("{found:?}") };
        assert_eq!(kernel, "switched+softcap");
    }
}

#[test]
fn a_switch_that_the_text_lacks_is_an_error_of_the_launch() {
    let off = kernel(KernelSpec { name: "switched", threads: 1, shared_bytes: 0, ..KERNELS[0] });
    let on = KernelVariant { switches: Switches::NONE.with(Switch::Softcap), ..off };
    let images = KernelImages::with_override(&SWITCHED.replace("// specialize softcap", "")).unwrap();
    let driver = EmulatedDriver::new(Arch::Sm80, images).unwrap();
    // SAFETY: it cannot start.
    let error = unsafe { driver.launch(on, 1, &[], Stream::default()) }.unwrap_err();
    assert_eq!(error, Error::SwitchMissing { kernel: "switched".into(), switch: "softcap" });
}

/// All are loaded at once, and a text that is none is found before anything is launched.
#[test]
fn kernels_are_prepared_side_by_side() {
    let variants: Vec<KernelVariant> = ["forward_bf16_d64_sm80", "backward_delta_bf16_sm80"]
        .map(|name| KERNELS.iter().find(|kernel| kernel.name == name).unwrap().into())
        .into();
    let driver = driver();
    driver.prepare(&variants).unwrap();
    assert_eq!(driver.modules.lock().unwrap().len(), 2);
    driver.prepare(&variants).unwrap();
    let images = KernelImages::with_override(".entry forward_bf16_d64_sm80(").unwrap();
    let driver = EmulatedDriver::new(Arch::Sm80, images).unwrap();
    let error = driver.prepare(&variants).unwrap_err();
    assert!(error.to_string().starts_with("kernel forward_bf16_d64_sm80: "), "{error}");
    assert_eq!(driver.modules.lock().unwrap().len(), 1);
}

#[test]
fn an_emulator_that_is_not_optimised_says_how_to_change_that() {
    let text = slow_text("0").unwrap();
    assert!(text.contains("[profile.dev.package.ptx-emulator] opt-level = 3"), "{text}");
    assert!(slow_text("2").is_none() && slow_text("3").is_none());
    assert!(["0", "1", "2", "3", "s", "z"].contains(&ptx_emulator::OPT_LEVEL));
}

/// A text is parsed once, wherever else it stands.
#[test]
fn equal_texts_are_one_module() {
    let text = ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry once()\n{\nret;\n}\n";
    let variant = kernel(KERNELS[0]);
    let [one, other] = [(); 2].map(|()| Arc::<str>::from(text));
    let modules = [&one, &other, &other].map(|text| parse(variant, text.clone()).unwrap());
    assert!(modules.iter().all(|module| Arc::ptr_eq(module, &modules[0])));
    let more = parse(variant, format!("{text} ").into()).unwrap();
    assert!(!Arc::ptr_eq(&more, &modules[0]));
}
