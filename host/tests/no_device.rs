//! The CUDA backend where there is no GPU: the program starts, and says why it has no device.
//!
//! On a machine with a GPU each test asserts the opposite, so that none is empty there. And where there is a C
//! compiler all of them run once more, in a process that finds a driver of our own: `support/driver.c`.

use finite_attention::driver::cuda::CudaDriver;
use finite_attention::{Device, Error, KernelImages, driver::Driver};
use std::process::Command;

/// Whether the driver's library can be opened, found out without any of our code.
fn driver_is_installed() -> bool {
    // SAFETY: what the library itself does when it looks for a device.
    unsafe { libloading::Library::new("libcuda.so.1") }.is_ok()
}

#[test]
fn opening_a_device_succeeds_or_says_what_is_missing() {
    match CudaDriver::new(0, KernelImages::embedded()) {
        Ok(driver) => {
            let properties = driver.properties();
            assert!(driver_is_installed(), "{properties:?}");
            assert!(properties.compute_capability >= (3, 0), "{properties:?}");
            assert!(properties.multiprocessors > 0 && properties.l2_bytes > 0, "{properties:?}");
            assert!(properties.shared_bytes_per_block >= 48 * 1024, "{properties:?}");
        }
        Err(error) => {
            let Error::NoDevice { device, reason } = &error else { panic!("{error}") };
            assert_eq!(device, "cuda:0");
            if !driver_is_installed() {
                assert!(reason.starts_with("no CUDA driver: libcuda.so.1 cannot be opened"), "{reason}");
            }
        }
    }
}

#[test]
fn an_ordinal_beyond_the_last_device_is_no_device() {
    let error = CudaDriver::new(1000, KernelImages::embedded()).err().expect("no machine has 1001 GPUs");
    assert!(matches!(&error, Error::NoDevice { device, .. } if device == "cuda:1000"), "{error}");
    assert!(error.to_string().starts_with("device cuda:1000: not available: "), "{error}");
}

#[test]
fn without_a_gpu_the_default_device_is_the_emulator() {
    let device = Device::default().expect("the emulator needs nothing");
    let is_emulated = device.properties().name.starts_with("ptx-emulator");
    assert_eq!(is_emulated, CudaDriver::count().is_err());
}

#[cfg(feature = "cust")]
#[test]
fn every_call_through_cust_answers_instead_of_failing_to_link() {
    use cust::error::CudaError;
    let initialised = cust::init(cust::CudaFlags::empty());
    if driver_is_installed() {
        assert!(initialised.is_ok() || initialised == Err(CudaError::NoDevice), "{initialised:?}");
    } else {
        assert_eq!(initialised, Err(CudaError::NoDevice));
        assert_eq!(CudaError::NoDevice.to_string(), "\"no CUDA driver\"");
        assert_eq!(cust::device::Device::num_devices(), Err(CudaError::NoDevice));
    }
}

#[test]
fn a_gpu_holds_what_is_copied_to_it_also_from_other_threads() {
    let Ok(driver) = CudaDriver::new(0, KernelImages::embedded()) else {
        assert!(CudaDriver::count().is_err(), "there is a device and it does not open");
        return;
    };
    let stream = finite_attention::Stream::default();
    std::thread::scope(|scope| {
        for thread in 0..4_u8 {
            let driver = &driver;
            scope.spawn(move || {
                let written: Vec<u8> = (0..1_000_003_u32).map(|i| (i % 251) as u8 ^ thread).collect();
                let pointer = driver.allocate(written.len()).expect("a megabyte");
                assert_eq!(pointer % 256, 0);
                driver.copy_to_device(pointer, &written).expect("copies");
                let mut read = vec![0; written.len()];
                driver.copy_to_host(&mut read, pointer, stream).expect("copies back");
                assert!(read == written);
                // SAFETY: allocated above, and all copies are done.
                unsafe { driver.free(pointer) }.expect("frees");
            });
        }
    });
}

/// What the tests above assert of a machine with a GPU, of a device that keeps account of what is done with it.
#[test]
fn with_a_driver_a_device_opens_and_is_closed_again() {
    const DRIVER: &str = include_str!("support/driver.c");
    if Command::new("cc").arg("--version").output().is_err() {
        println!("not tested: there is no C compiler `cc`");
        return;
    }
    let folder = std::env::temp_dir().join(format!("fattn-{}-driver", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let source = folder.join("driver.c");
    std::fs::write(&source, DRIVER).expect("a file");
    let compiled = Command::new("cc")
        .args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1", "-shared", "-fPIC", "-o"])
        .args([&folder.join("libcuda.so.1"), &source])
        .output()
        .expect("it is there");
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let tests = [
        "opening_a_device_succeeds",
        "an_ordinal_beyond_the_last_device",
        "without_a_gpu_the_default_device",
        "a_gpu_holds_what_is_copied_to_it",
        "every_call_through_cust_answers",
    ];
    let ran = Command::new(std::env::current_exe().expect("a test knows where it is"))
        .args(tests)
        .env("LD_LIBRARY_PATH", &folder)
        .output()
        .expect("it starts");
    std::fs::remove_dir_all(&folder).expect("was made above");
    let [said, error] = [ran.stdout, ran.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    assert!(ran.status.success(), "{said}\n{error}");
    let passed = if cfg!(feature = "cust") { 5 } else { 4 };
    assert!(said.contains(&format!("test result: ok. {passed} passed")), "{said}");
}
