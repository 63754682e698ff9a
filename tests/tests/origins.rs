//! What shipped kernels compute of finite numbers has nothing that is not finite, at any instruction.

use finite_attention::check::{cases, run_case};
use finite_attention::driver::emulated::{EmulatedDriver, Options};
use finite_attention::{Device, KernelImages};
use finite_attention_tests::device::emulated_archs;
use finite_attention_tests::share::drawn;
use std::sync::Arc;

#[test]
fn shipped_kernels_have_no_origin_where_everything_is_finite() {
    let cases = cases(7, 24);
    let all = cases.iter().flat_map(|case| emulated_archs().into_iter().map(move |arch| (case, arch)));
    for (case, arch) in drawn("origins", 4, all) {
        let driver = EmulatedDriver::new(arch, KernelImages::embedded()).unwrap();
        let driver = Arc::new(driver.with_options(Options { trace: true, ..Options::default() }));
        let outcome = run_case(&Device::from_driver(driver.clone()), case);
        assert_eq!(outcome.failure, None);
        for (kernel, trace) in driver.take_traces() {
            assert!(trace.first.is_none(), "{kernel}, case {case:?}: {}", trace.first.unwrap());
        }
    }
}
