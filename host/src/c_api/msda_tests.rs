//! Multi-scale deformable attention through the C interface.

use super::*;
use crate::buffer::{DeviceBuffer, InDeviceMemory};
use std::ptr;

fn tensor(address: u64, shape: [i64; 4]) -> CTensor {
    let [_, rows, heads, columns] = shape;
    CTensor { address, shape, strides: [rows * heads * columns, heads * columns, columns, 1] }
}

/// One level of 1 x 2 cells with values 1 and 3; one query with a point half way between them, of weight 2.
fn with_point(check: impl FnOnce(&Device, CMsda)) {
    let device = Device::parse("emulated").unwrap();
    let value = DeviceBuffer::from_slice(&device, &[1.0f32, 3.0]).unwrap();
    let locations = DeviceBuffer::from_slice(&device, &[0.5f32, 0.5]).unwrap();
    let weights = DeviceBuffer::from_slice(&device, &[2.0f32]).unwrap();
    let mut msda = CMsda {
        dtype: 2,
        locations_dtype: 2,
        weights_dtype: 2,
        levels: 1,
        level_points: 1,
        value: tensor(value.device_pointer(), [1, 2, 1, 1]),
        locations: tensor(locations.device_pointer(), [1, 1, 1, 2]),
        weights: tensor(weights.device_pointer(), [1, 1, 1, 1]),
        ..Default::default()
    };
    msda.shapes[0] = [1, 2];
    check(&device, msda);
}

fn forward_args(msda: CMsda, o: CTensor) -> CMsdaForwardArgs {
    CMsdaForwardArgs { struct_bytes: size_of::<CMsdaForwardArgs>() as u32, reserved: 0, msda, o }
}

#[test]
fn a_point_is_sampled_and_gives_gradients() {
    with_point(|device, msda| {
        let o = DeviceBuffer::<f32>::uninitialised(device, 1).unwrap();
        let args = forward_args(msda, tensor(o.device_pointer(), [1, 1, 1, 1]));
        // SAFETY: the device is open; no tensor is touched.
        assert_eq!(unsafe { fattn_msda_prepare_forward(device, &args) }, 0);
        // SAFETY: the device is open and the tensors are as the arguments say.
        assert_eq!(unsafe { fattn_msda_forward(device, &args, ptr::null_mut()) }, 0);
        assert_eq!(o.to_vec(Stream::default()).unwrap(), [4.0]);

        let d_o = DeviceBuffer::from_slice(device, &[10.0f32]).unwrap();
        let [d_value, d_locations, d_weights] =
            [2, 2, 1].map(|count| DeviceBuffer::<f32>::uninitialised(device, count).unwrap());
        for deterministic in [0, 1] {
            let mut args = CMsdaBackwardArgs {
                struct_bytes: size_of::<CMsdaBackwardArgs>() as u32,
                deterministic,
                msda,
                d_o: tensor(d_o.device_pointer(), [1, 1, 1, 1]),
                d_value: tensor(d_value.device_pointer(), [1, 2, 1, 1]),
                d_locations: tensor(d_locations.device_pointer(), [1, 1, 1, 2]),
                d_weights: tensor(d_weights.device_pointer(), [1, 1, 1, 1]),
                workspace: 0,
                workspace_bytes: 0,
            };
            // SAFETY: the device is open; no tensor is touched.
            assert_eq!(unsafe { fattn_msda_prepare_backward(device, &args) }, 0);
            let mut bytes = 0;
            // SAFETY: as above, and a writable place.
            let status = unsafe { fattn_msda_backward_workspace_bytes(device, &args, &mut bytes) };
            assert_eq!((status, bytes > 0), (0, deterministic == 1));
            let workspace = DeviceBuffer::<u8>::uninitialised(device, bytes as usize).unwrap();
            (args.workspace, args.workspace_bytes) = (workspace.device_pointer(), bytes);
            // SAFETY: as above; the workspace is as large as was said.
            assert_eq!(unsafe { fattn_msda_backward(device, &args, ptr::null_mut()) }, 0);
            assert_eq!(d_value.to_vec(Stream::default()).unwrap(), [10.0, 10.0]);
            // 2 cells, weight 2, 10 times 3 - 1 along x; along y there are zeros above and below.
            assert_eq!(d_locations.to_vec(Stream::default()).unwrap()[0], 80.0);
            assert_eq!(d_weights.to_vec(Stream::default()).unwrap(), [20.0]);
        }
    });
}

#[test]
fn wrong_numbers_are_refused_by_name() {
    let refused = |change: fn(&mut CMsdaForwardArgs), text: &str| {
        with_point(|device, msda| {
            let mut args = forward_args(msda, tensor(256, [1, 1, 1, 1]));
            change(&mut args);
            // SAFETY: the device is open; the call fails before anything is launched.
            let status = unsafe { fattn_msda_forward(device, &args, ptr::null_mut()) };
            // SAFETY: a NUL-terminated string of this thread.
            let got = unsafe { CStr::from_ptr(fattn_last_error()) }.to_string_lossy().into_owned();
            assert_eq!((status, got.as_str()), (Status::InvalidArgument as i32, text));
        });
    };
    refused(|args| args.msda.dtype = 3, "dtype: expected 0, 1 or 2, got 3");
    refused(|args| args.msda.padding = 2, "padding: expected 0 or 1, got 2");
    refused(|args| args.msda.align_corners = 2, "align_corners: expected 0 or 1, got 2");
    refused(|args| args.msda.levels = 17, "levels: expected 1 to 16, got 17");
    refused(|args| args.msda.levels = -1, "levels: expected 1 to 16, got -1");
    refused(|args| args.msda.level_points = -1, "level_points: expected at least 0, got -1");
    refused(|args| args.msda.shapes[0] = [-1, 2], "shapes: expected sizes of at least 1, got -1");
    refused(|args| args.msda.shapes[0] = [1, 3], "value: expected rows 3 like shapes, got 2");
    let size = size_of::<CMsdaForwardArgs>();
    let text = format!("fattn_msda_forward: expected struct_bytes {size}, got 8");
    refused(|args| args.struct_bytes = 8, &text);
    with_point(|device, msda| {
        let args = forward_args(CMsda { padding: 2, ..msda }, tensor(256, [1, 1, 1, 1]));
        // SAFETY: the device is open; no tensor is touched.
        assert_eq!(unsafe { fattn_msda_prepare_forward(device, &args) }, Status::InvalidArgument as i32);
    });
    refused(|args| args.reserved = 1, "fattn_msda_forward: expected 0 in reserved, got 1");
}
