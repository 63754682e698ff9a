//! `fattn first-call`: how long the first forward and the first backward of a process take, through the C
//! interface.
//!
//! Kernels are loaded when they are first launched. Each measurement is a process of its own, with the
//! driver's cache of compiled kernels off: once with kernels as they are built in, assembled where they are,
//! and once from PTX alone.

use crate::console::outln;
use anyhow::{Context, Result, bail, ensure};
use clap::{ArgAction, Args};
use finite_attention::buffer::{DeviceBuffer, InDeviceMemory};
use finite_attention::c_api::{
    CAttention, CBackwardArgs, CForwardArgs, CTensor, fattn_backward, fattn_backward_workspace_bytes,
    fattn_device_close, fattn_device_open, fattn_forward, fattn_last_error, fattn_prepare_backward,
    fattn_prepare_forward,
};
use finite_attention::{Device, Stream};
use std::ffi::{CStr, CString};
use std::process::{Command, ExitCode};
use std::ptr;
use std::time::Instant;

/// What is measured.
#[derive(Args)]
pub struct FirstCallArguments {
    /// cuda, cuda:N, cuda:N:sm_80, emulated, emulated:sm_80 or emulated:sm_90a.
    #[arg(long, default_value = "cuda")]
    device: String,
    /// Head dimensions.
    #[arg(long, value_delimiter = ',', default_value = "64,128", action = ArgAction::Set)]
    head_dims: Vec<u32>,
    /// Rows of q and of k.
    #[arg(long, default_value_t = 1024)]
    rows: u32,
    /// f16 instead of bf16.
    #[arg(long)]
    f16: bool,
    /// Exit with 1 if a forward and a backward with kernels as they are built in take longer together,
    /// milliseconds.
    #[arg(long)]
    limit: Option<f64>,
    /// Load kernels with fattn_prepare_forward and fattn_prepare_backward first.
    #[arg(long)]
    prepare: bool,
    /// Measure in this process and print the times alone: what the command starts itself with.
    #[arg(long, hide = true)]
    here: bool,
}

/// Milliseconds.
const COLUMNS: [&str; 6] = ["open", "prepare", "forward", "backward", "together", "again"];

/// Prints a table; exit code 1 if a limit is exceeded.
pub fn run(arguments: &FirstCallArguments) -> Result<ExitCode> {
    if arguments.here {
        let [head_dim] = arguments.head_dims[..] else { bail!("--here takes one head dimension") };
        outln!("{}", measured(arguments, head_dim)?.map(|time| time.to_string()).join(" "))?;
        return Ok(ExitCode::SUCCESS);
    }
    outln!("milliseconds on {}, {} rows, 8 heads, causal:", arguments.device, arguments.rows)?;
    outln!("{:>8} {:<9} {}", "head dim", "kernels", COLUMNS.map(|name| format!("{name:>9}")).join(" "))?;
    let mut is_within = true;
    for &head_dim in &arguments.head_dims {
        for (kernels, ptx_only) in [("built in", "0"), ("PTX", "1")] {
            let times = in_a_process(arguments, head_dim, ptx_only)?;
            let columns = times.map(|time| format!("{time:>9.1}")).join(" ");
            outln!("{head_dim:>8} {kernels:<9} {columns}")?;
            is_within &= ptx_only == "1" || arguments.limit.is_none_or(|limit| times[4] <= limit);
        }
    }
    Ok(if is_within { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

/// The times of a process that starts anew.
fn in_a_process(
    arguments: &FirstCallArguments,
    head_dim: u32,
    ptx_only: &str,
) -> Result<[f64; COLUMNS.len()]> {
    let mut command = Command::new(std::env::current_exe().context("cannot find this program")?);
    command.args(["first-call", "--here", "--device", &arguments.device]);
    command.args(["--head-dims", &head_dim.to_string(), "--rows", &arguments.rows.to_string()]);
    command.args(arguments.f16.then_some("--f16")).args(arguments.prepare.then_some("--prepare"));
    command.env("CUDA_CACHE_DISABLE", "1").env("FATTN_PTX_ONLY", ptx_only);
    let output = command.output().context("cannot start this program again")?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr).trim());
    let text = String::from_utf8_lossy(&output.stdout);
    let times = text.split_whitespace().map(str::parse).collect::<Result<Vec<f64>, _>>();
    let times = times.ok().and_then(|times| times.try_into().ok());
    times.with_context(|| format!("expected {} times, got `{}`", COLUMNS.len(), text.trim()))
}

/// Calls the C interface, and times each call until the device is done.
fn measured(arguments: &FirstCallArguments, head_dim: u32) -> Result<[f64; COLUMNS.len()]> {
    const HEADS: i64 = 8;
    let name = CString::new(arguments.device.as_str()).context("--device")?;
    let mut opened = ptr::null_mut();
    // SAFETY: a string and a writable place.
    let open = timed(|| checked(unsafe { fattn_device_open(name.as_ptr(), &mut opened) }))?;
    // SAFETY: opened above, and closed at the end of this function, after the last use.
    let device: &Device = unsafe { &*opened };
    let (rows, columns) = (i64::from(arguments.rows), i64::from(head_dim));
    let elements = usize::try_from(rows * HEADS * columns)?;
    let buffers = (0..8).map(|_| DeviceBuffer::from_slice(device, &vec![0u16; elements]));
    let buffers = buffers.collect::<finite_attention::Result<Vec<_>>>()?;
    let lse = DeviceBuffer::from_slice(device, &vec![0f32; usize::try_from(rows * HEADS)?])?;
    let strides = [rows * HEADS * columns, HEADS * columns, columns, 1];
    let tensors: Vec<CTensor> = buffers
        .iter()
        .map(|buffer| {
            let address = buffer.device_pointer();
            CTensor { address, shape: [1, rows, HEADS, columns], strides }
        })
        .collect();
    let dtype = i32::from(arguments.f16);
    let attention = CAttention {
        dtype,
        output_dtype: dtype,
        mask: 1,
        scale: f32::NAN,
        q: tensors[0],
        k: tensors[1],
        v: tensors[2],
        o: tensors[3],
        lse: lse.device_pointer(),
        ..CAttention::default()
    };
    let struct_bytes = u32::try_from(size_of::<CForwardArgs>())?;
    let forward = CForwardArgs { struct_bytes, attention, ..CForwardArgs::default() };
    let mut backward = CBackwardArgs {
        struct_bytes: u32::try_from(size_of::<CBackwardArgs>())?,
        attention,
        d_o: tensors[4],
        dq: tensors[5],
        dk: tensors[6],
        dv: tensors[7],
        ..CBackwardArgs::default()
    };
    let mut bytes = 0;
    // SAFETY: the device is open, and the arguments are valid.
    checked(unsafe { fattn_backward_workspace_bytes(device, &backward, &mut bytes) })?;
    let workspace = DeviceBuffer::<u8>::uninitialised(device, usize::try_from(bytes)?)?;
    (backward.workspace, backward.workspace_bytes) = (workspace.device_pointer(), bytes);
    let prepare = || -> Result<()> {
        if arguments.prepare {
            // SAFETY: as above.
            checked(unsafe { fattn_prepare_forward(device, &forward) })?;
            // SAFETY: as above.
            checked(unsafe { fattn_prepare_backward(device, &backward) })?;
        }
        Ok(())
    };
    let run_forward = || -> Result<()> {
        // SAFETY: as above, and every address is that of a buffer as large as its tensor.
        checked(unsafe { fattn_forward(device, &forward, ptr::null_mut()) })?;
        Ok(device.synchronize(Stream::default())?)
    };
    let run_backward = || -> Result<()> {
        // SAFETY: as above; the workspace is as large as asked for.
        checked(unsafe { fattn_backward(device, &backward, ptr::null_mut()) })?;
        Ok(device.synchronize(Stream::default())?)
    };
    let (prepare, forward, backward) = (timed(prepare)?, timed(run_forward)?, timed(run_backward)?);
    let again = timed(run_forward)? + timed(run_backward)?;
    drop((buffers, lse, workspace));
    // SAFETY: all of its memory is freed, all of its work done, and it is not used again.
    unsafe { fattn_device_close(opened) };
    Ok([open, prepare, forward, backward, forward + backward, again])
}

/// Milliseconds of a call.
fn timed(call: impl FnOnce() -> Result<()>) -> Result<f64> {
    let started = Instant::now();
    call()?;
    Ok(started.elapsed().as_secs_f64() * 1e3)
}

/// What a function of the C interface says.
fn checked(status: i32) -> Result<()> {
    // SAFETY: a NUL-terminated string of this thread.
    let text = || unsafe { CStr::from_ptr(fattn_last_error()) }.to_string_lossy().into_owned();
    ensure!(status == 0, "{}", text());
    Ok(())
}
