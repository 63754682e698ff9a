//! What is refused of multi-scale deformable attention, and with which text.

use finite_attention::attention::Workspace;
use finite_attention::plan::{MsdaPlan, plan_msda_backward, plan_msda_forward};
use finite_attention::{
    Arch, Device, Dtype, Layout, Mode, MsdaBackwardPointers, MsdaBackwardProblem, MsdaInputs,
    MsdaPointers, MsdaProblem, Stream, msda_backward, msda_forward_host,
};
use half::bf16;

/// 2 batches, 12 + 2 cells, 3 heads of 16 channels, 5 queries of 2 x 4 points.
fn problem() -> MsdaProblem {
    MsdaProblem::new(Dtype::Bf16, Layout::bshd([2, 14, 3, 16]), &[[3, 4], [1, 2]], 5, 4)
}

#[track_caller]
fn refused(change: impl FnOnce(&mut MsdaProblem), text: &str) {
    let mut problem = problem();
    change(&mut problem);
    assert_eq!(problem.validate().unwrap_err().to_string(), text);
}

#[track_caller]
fn backward_refused(change: impl FnOnce(&mut MsdaBackwardProblem), text: &str) {
    let mut problem = MsdaBackwardProblem::new(problem());
    change(&mut problem);
    assert_eq!(problem.validate().unwrap_err().to_string(), text);
}

#[test]
fn levels() {
    assert!(problem().validate().is_ok());
    refused(|p| p.shapes.clear(), "shapes: expected levels 1..=16, got 0");
    refused(|p| p.shapes = vec![[1, 1]; 17], "shapes: expected levels 1..=16, got 17");
    refused(|p| p.shapes[1] = [0, 2], "shapes: expected height 1..=16777216, got 0");
    refused(|p| p.shapes[0] = [3, 1 << 25], "shapes: expected width 1..=16777216, got 33554432");
    refused(
        |p| p.shapes[0] = [1 << 24, 1 << 24],
        "shapes: expected cells 1..=2147418112, got 281474976710656",
    );
    refused(|p| p.shapes[1] = [1, 3], "value: expected rows 15 like shapes, got 14");
}

#[test]
fn shapes_strides_and_types() {
    refused(
        |p| p.value = Layout::bshd([2, 14, 3, 40000]),
        "value: expected head_dim 1..=32768, got 40000",
    );
    for points in [1 << 30, usize::MAX] {
        refused(
            |p| p.level_points = points,
            &format!("level_points: expected points 0..=1073709056, got {points}"),
        );
    }
    refused(|p| p.locations.shape[3] = 15, "locations: expected columns 16 like shapes, got 15");
    refused(|p| p.weights.shape[1] = 6, "weights: expected rows 5 like o, got 6");
    refused(|p| p.weights.shape[2] = 1, "weights: expected heads 3 like value, got 1");
    refused(|p| p.o.shape[3] = 8, "o: expected head_dim 16 like value, got 8");
    refused(|p| p.value.strides[3] = 2, "value: expected contiguous columns (stride 1), got stride 2");
    refused(
        |p| p.value.strides[1] = 1 << 31,
        "value: expected a stride of rows of at most 1073741823 elements in size, got 2147483648",
    );
    refused(
        |p| p.o.strides[1] = 0,
        "o: expected a positive stride of rows, got 0: outputs are written once",
    );
    refused(
        |p| p.locations_dtype = Dtype::F16,
        "locations: expected dtype bf16 like value, or f32, got f16",
    );
    refused(
        |p| p.weights_dtype = Dtype::F16,
        "weights: expected dtype bf16 like value, or f32, got f16",
    );
    backward_refused(|p| p.d_o.shape[1] = 4, "do: expected rows 5 like o, got 4");
    backward_refused(|p| p.d_value.shape[0] = 1, "dvalue: expected batch 2 like value, got 1");
    backward_refused(
        |p| p.d_locations.strides[2] = 8,
        "dlocations: expected a stride of heads of at least 16, so that no two elements share an \
         address, got 8",
    );
    backward_refused(
        |p| p.d_weights.strides[0] = -1,
        "dweights: expected a positive stride of batch, got -1: outputs are written once",
    );
}

#[test]
fn addresses_and_workspaces() {
    let device = Device::emulated(Arch::Sm80).unwrap();
    let properties = device.properties();
    let valid = problem().validate().unwrap();
    let pointers = MsdaPointers { value: 256, locations: 256, weights: 256, o: 256 };
    let text = |pointers: MsdaPointers| {
        plan_msda_forward(&valid, properties, &pointers).unwrap_err().to_string()
    };
    assert_eq!(
        text(MsdaPointers { value: 0, ..pointers }),
        "value: expected a device pointer, got null for 1344 elements"
    );
    assert_eq!(
        text(MsdaPointers { locations: 258, ..pointers }),
        "locations: expected an address that is a multiple of 4 bytes, got 0x102"
    );
    let gradients = MsdaBackwardPointers {
        value: 256,
        locations: 256,
        weights: 256,
        d_o: 256,
        d_value: 256,
        d_locations: 256,
        d_weights: 256,
    };
    for mode in [Mode::Fast, Mode::Deterministic] {
        let problem = MsdaBackwardProblem::new(problem()).with_mode(mode);
        let plan = plan_msda_backward(&problem.validate().unwrap(), properties, &gradients).unwrap();
        let expected = plan.workspace_bytes();
        assert!(expected > 0);
        let text = |pointer, bytes| {
            let workspace = Workspace { pointer, bytes };
            // SAFETY: the call fails before anything is launched.
            unsafe { msda_backward(&device, &problem, &gradients, workspace, Stream::default()) }
                .unwrap_err()
                .to_string()
        };
        assert_eq!(
            text(256, expected - 1),
            format!("workspace: expected at least {expected} bytes, got {}", expected - 1)
        );
        assert_eq!(
            text(MsdaPlan::WORKSPACE_ALIGNMENT.into(), 0),
            format!("workspace: expected at least {expected} bytes, got 0")
        );
        assert_eq!(
            text(128, expected),
            "workspace: expected an address that is a multiple of 256 bytes, got 0x80"
        );
        assert!(text(0, expected).starts_with("workspace: expected a device pointer, got null"));
    }
}

/// In 64 bits these would be a few bytes, or look like an offset backwards.
#[test]
fn workspaces_that_no_memory_holds() {
    let device = Device::emulated(Arch::Sm80).unwrap();
    let pointers = MsdaBackwardPointers {
        value: 256,
        locations: 256,
        weights: 256,
        d_o: 256,
        d_value: 256,
        d_locations: 256,
        d_weights: 256,
    };
    let text = |problem: &MsdaProblem, mode| {
        let valid = MsdaBackwardProblem::new(problem.clone()).with_mode(mode).validate().unwrap();
        plan_msda_backward(&valid, device.properties(), &pointers).unwrap_err().to_string()
    };
    let most = "workspace: expected at most 9223372036854775807 bytes for this problem";
    // 2^60 points of 16 bytes each are 2^64; 4 bins and their starts are 4 + 5 words of 2^30 batches.
    let size = 1 << 30;
    let points = MsdaProblem::new(Dtype::Bf16, Layout::bshd([size, 1, 1, 1]), &[[1, 1]], size, 1);
    let points = points
        .clone()
        .with_locations(points.locations, Dtype::Bf16)
        .with_weights(points.weights, Dtype::Bf16);
    let got = (1_u128 << 64) + (9 << 32);
    assert_eq!(text(&points, Mode::Deterministic), format!("{most}, got {got}"));
    // 2^61 sums of 4 bytes.
    let sums =
        MsdaProblem::new(Dtype::Bf16, Layout::bshd([size, size, 1, 2]), &[[1 << 15, 1 << 15]], 1, 1);
    assert_eq!(text(&sums, Mode::Fast), format!("{most}, got {}", 1_u128 << 63));
}

#[test]
fn host_slices() {
    let device = Device::emulated(Arch::Sm80).unwrap();
    let (value, locations, weights) = (vec![bf16::ONE; 1344], vec![0.5f32; 480], vec![1f32; 240]);
    let inputs = MsdaInputs { value: &value, locations: &locations, weights: &weights };
    assert_eq!(msda_forward_host(&device, &problem(), &inputs).unwrap().len(), 480);
    let short = MsdaInputs { weights: &weights[1..], ..inputs };
    assert_eq!(
        msda_forward_host(&device, &problem(), &short).unwrap_err().to_string(),
        "weights: expected 240 elements for shape [2, 5, 3, 8], got 239"
    );
    let long = MsdaInputs { locations: &[0.5; 481], ..inputs };
    assert_eq!(
        msda_forward_host(&device, &problem(), &long).unwrap_err().to_string(),
        "locations: expected 480 elements for shape [2, 5, 3, 16], got 481"
    );
    let other = problem().with_weights(problem().weights, Dtype::Bf16);
    assert_eq!(
        msda_forward_host(&device, &other, &inputs).unwrap_err().to_string(),
        "weights: expected dtype bf16 like problem, got f32"
    );
}
