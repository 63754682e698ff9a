//! Every `cu*` symbol that `cust_raw` declares, defined here as a jump through a slot that is filled on
//! first use.
//!
//! `cust`, and the declarations in `raw` and `door`, are written to be linked with `libcuda`, which exists
//! only where the NVIDIA driver is installed. With these definitions nothing is left to link: the same
//! program starts on every machine, and finds the driver, or does not, when it asks for a device.
//!
//! ```text
//! caller --> cuInit:  jump to [slot of cuInit]             (from the second call on)
//!                     if the slot is empty: save the argument registers,
//!                     loader::resolve(slot), restore them, jump to what it returned
//! slot:  8 bytes     address of the real function, or 0
//!        n + 1 bytes name of the symbol, NUL-terminated
//! ```
//!
//! The symbols have hidden visibility: a shared library made of this crate exports none of them, and the
//! driver itself never binds to them. [`super::raw`] calls some of them directly, so that whatever uses
//! the CUDA backend pulls all of them into the link, before the linker comes to `cust`.

use super::loader::resolve;
use std::arch::global_asm;

#[cfg(not(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64"))))]
compile_error!("the CUDA backend is written for Linux on x86-64 and aarch64");

/// One jump and its slot. rdi, rsi, rdx, rcx, r8, r9 and xmm0..xmm7 may hold arguments, r11 is free.
#[cfg(target_arch = "x86_64")]
macro_rules! trampoline {
    ($name:ident) => {
        concat!(
            ".globl ",
            stringify!($name),
            "\n",
            ".hidden ",
            stringify!($name),
            "\n",
            ".type ",
            stringify!($name),
            ",@function\n",
            ".p2align 4\n",
            stringify!($name),
            ":\n",
            "mov r11, qword ptr [rip + .Lcuda_slot_",
            stringify!($name),
            "]\n",
            "test r11, r11\n",
            "je 2f\n",
            "jmp r11\n",
            "2: lea r11, [rip + .Lcuda_slot_",
            stringify!($name),
            "]\n",
            "jmp .Lcuda_resolve\n",
            ".size ",
            stringify!($name),
            ", . - ",
            stringify!($name),
            "\n",
            ".pushsection .data.cuda_slots, \"aw\", @progbits\n",
            ".p2align 3\n",
            ".Lcuda_slot_",
            stringify!($name),
            ": .quad 0\n",
            ".asciz \"",
            stringify!($name),
            "\"\n",
            ".popsection\n",
        )
    };
}

/// One jump and its slot. x0..x8 and q0..q7 may hold arguments, x16 and x17 are free.
#[cfg(target_arch = "aarch64")]
macro_rules! trampoline {
    ($name:ident) => {
        concat!(
            ".globl ",
            stringify!($name),
            "\n",
            ".hidden ",
            stringify!($name),
            "\n",
            ".type ",
            stringify!($name),
            ",@function\n",
            ".p2align 4\n",
            stringify!($name),
            ":\n",
            "adrp x16, .Lcuda_slot_",
            stringify!($name),
            "\n",
            "add x16, x16, :lo12:.Lcuda_slot_",
            stringify!($name),
            "\n",
            "ldar x17, [x16]\n",
            "cbz x17, .Lcuda_resolve\n",
            "br x17\n",
            ".size ",
            stringify!($name),
            ", . - ",
            stringify!($name),
            "\n",
            ".pushsection .data.cuda_slots, \"aw\", @progbits\n",
            ".p2align 3\n",
            ".Lcuda_slot_",
            stringify!($name),
            ": .quad 0\n",
            ".asciz \"",
            stringify!($name),
            "\"\n",
            ".popsection\n",
        )
    };
}

// The slow path: r11 (x16) holds the address of the slot.
#[cfg(target_arch = "x86_64")]
macro_rules! trampolines {
    ($($name:ident)*) => {
        global_asm!(
            ".pushsection .text.cuda_trampolines, \"ax\", @progbits",
            ".p2align 4",
            ".Lcuda_resolve:",
            ".cfi_startproc",
            "push rbp",
            ".cfi_def_cfa_offset 16",
            ".cfi_offset rbp, -16",
            "mov rbp, rsp",
            ".cfi_def_cfa_register rbp",
            "sub rsp, 176",
            "mov [rsp], rdi",
            "mov [rsp + 8], rsi",
            "mov [rsp + 16], rdx",
            "mov [rsp + 24], rcx",
            "mov [rsp + 32], r8",
            "mov [rsp + 40], r9",
            "movups [rsp + 48], xmm0",
            "movups [rsp + 64], xmm1",
            "movups [rsp + 80], xmm2",
            "movups [rsp + 96], xmm3",
            "movups [rsp + 112], xmm4",
            "movups [rsp + 128], xmm5",
            "movups [rsp + 144], xmm6",
            "movups [rsp + 160], xmm7",
            "mov rdi, r11",
            "call {resolve}",
            "mov r11, rax",
            "mov rdi, [rsp]",
            "mov rsi, [rsp + 8]",
            "mov rdx, [rsp + 16]",
            "mov rcx, [rsp + 24]",
            "mov r8, [rsp + 32]",
            "mov r9, [rsp + 40]",
            "movups xmm0, [rsp + 48]",
            "movups xmm1, [rsp + 64]",
            "movups xmm2, [rsp + 80]",
            "movups xmm3, [rsp + 96]",
            "movups xmm4, [rsp + 112]",
            "movups xmm5, [rsp + 128]",
            "movups xmm6, [rsp + 144]",
            "movups xmm7, [rsp + 160]",
            "leave",
            ".cfi_def_cfa rsp, 8",
            "jmp r11",
            ".cfi_endproc",
            $(trampoline!($name),)*
            ".popsection",
            resolve = sym resolve,
        );
    };
}

#[cfg(target_arch = "aarch64")]
macro_rules! trampolines {
    ($($name:ident)*) => {
        global_asm!(
            ".pushsection .text.cuda_trampolines, \"ax\", @progbits",
            ".p2align 4",
            ".Lcuda_resolve:",
            "stp x29, x30, [sp, #-224]!",
            "mov x29, sp",
            "stp x0, x1, [sp, #16]",
            "stp x2, x3, [sp, #32]",
            "stp x4, x5, [sp, #48]",
            "stp x6, x7, [sp, #64]",
            "str x8, [sp, #80]",
            "stp q0, q1, [sp, #96]",
            "stp q2, q3, [sp, #128]",
            "stp q4, q5, [sp, #160]",
            "stp q6, q7, [sp, #192]",
            "mov x0, x16",
            "bl {resolve}",
            "mov x17, x0",
            "ldp x0, x1, [sp, #16]",
            "ldp x2, x3, [sp, #32]",
            "ldp x4, x5, [sp, #48]",
            "ldp x6, x7, [sp, #64]",
            "ldr x8, [sp, #80]",
            "ldp q0, q1, [sp, #96]",
            "ldp q2, q3, [sp, #128]",
            "ldp q4, q5, [sp, #160]",
            "ldp q6, q7, [sp, #192]",
            "ldp x29, x30, [sp], #224",
            "br x17",
            $(trampoline!($name),)*
            ".popsection",
            resolve = sym resolve,
        );
    };
}

// The functions of cust_raw 0.11.3 under their link names, and `cuLaunchKernelEx` and
// `cuTensorMapEncodeTiled`, which it lacks.
trampolines! {
    cuArray3DCreate_v2 cuArray3DGetDescriptor_v2 cuArrayCreate_v2 cuArrayDestroy
    cuArrayGetDescriptor_v2 cuArrayGetPlane cuArrayGetSparseProperties cuCtxAttach cuCtxCreate_v2
    cuCtxCreate_v3 cuCtxDestroy_v2 cuCtxDetach cuCtxDisablePeerAccess cuCtxEnablePeerAccess
    cuCtxGetApiVersion cuCtxGetCacheConfig cuCtxGetCurrent cuCtxGetDevice cuCtxGetExecAffinity
    cuCtxGetFlags cuCtxGetLimit cuCtxGetSharedMemConfig cuCtxGetStreamPriorityRange
    cuCtxPopCurrent_v2 cuCtxPushCurrent_v2 cuCtxResetPersistingL2Cache cuCtxSetCacheConfig
    cuCtxSetCurrent cuCtxSetLimit cuCtxSetSharedMemConfig cuCtxSynchronize cuDestroyExternalMemory
    cuDestroyExternalSemaphore cuDeviceCanAccessPeer cuDeviceComputeCapability cuDeviceGet
    cuDeviceGetAttribute cuDeviceGetByPCIBusId cuDeviceGetCount cuDeviceGetDefaultMemPool
    cuDeviceGetExecAffinitySupport cuDeviceGetGraphMemAttribute cuDeviceGetLuid cuDeviceGetMemPool
    cuDeviceGetName cuDeviceGetNvSciSyncAttributes cuDeviceGetP2PAttribute cuDeviceGetPCIBusId
    cuDeviceGetProperties cuDeviceGetTexture1DLinearMaxWidth cuDeviceGetUuid cuDeviceGetUuid_v2
    cuDeviceGraphMemTrim cuDevicePrimaryCtxGetState cuDevicePrimaryCtxRelease_v2
    cuDevicePrimaryCtxReset_v2 cuDevicePrimaryCtxRetain cuDevicePrimaryCtxSetFlags_v2
    cuDeviceSetGraphMemAttribute cuDeviceSetMemPool cuDeviceTotalMem_v2 cuDriverGetVersion
    cuEventCreate cuEventDestroy_v2 cuEventElapsedTime cuEventQuery cuEventRecord
    cuEventRecordWithFlags cuEventSynchronize cuExternalMemoryGetMappedBuffer
    cuExternalMemoryGetMappedMipmappedArray cuFlushGPUDirectRDMAWrites cuFuncGetAttribute
    cuFuncGetModule cuFuncSetAttribute cuFuncSetBlockShape cuFuncSetCacheConfig
    cuFuncSetSharedMemConfig cuFuncSetSharedSize cuGetErrorName cuGetErrorString cuGetExportTable
    cuGetProcAddress cuGraphAddChildGraphNode cuGraphAddDependencies cuGraphAddEmptyNode
    cuGraphAddEventRecordNode cuGraphAddEventWaitNode cuGraphAddExternalSemaphoresSignalNode
    cuGraphAddExternalSemaphoresWaitNode cuGraphAddHostNode cuGraphAddKernelNode
    cuGraphAddMemAllocNode cuGraphAddMemFreeNode cuGraphAddMemcpyNode cuGraphAddMemsetNode
    cuGraphChildGraphNodeGetGraph cuGraphClone cuGraphCreate cuGraphDebugDotPrint cuGraphDestroy
    cuGraphDestroyNode cuGraphEventRecordNodeGetEvent cuGraphEventRecordNodeSetEvent
    cuGraphEventWaitNodeGetEvent cuGraphEventWaitNodeSetEvent cuGraphExecChildGraphNodeSetParams
    cuGraphExecDestroy cuGraphExecEventRecordNodeSetEvent cuGraphExecEventWaitNodeSetEvent
    cuGraphExecExternalSemaphoresSignalNodeSetParams cuGraphExecExternalSemaphoresWaitNodeSetParams
    cuGraphExecHostNodeSetParams cuGraphExecKernelNodeSetParams cuGraphExecMemcpyNodeSetParams
    cuGraphExecMemsetNodeSetParams cuGraphExecUpdate cuGraphExternalSemaphoresSignalNodeGetParams
    cuGraphExternalSemaphoresSignalNodeSetParams cuGraphExternalSemaphoresWaitNodeGetParams
    cuGraphExternalSemaphoresWaitNodeSetParams cuGraphGetEdges cuGraphGetNodes cuGraphGetRootNodes
    cuGraphHostNodeGetParams cuGraphHostNodeSetParams cuGraphInstantiateWithFlags
    cuGraphInstantiate_v2 cuGraphKernelNodeCopyAttributes cuGraphKernelNodeGetAttribute
    cuGraphKernelNodeGetParams cuGraphKernelNodeSetAttribute cuGraphKernelNodeSetParams
    cuGraphLaunch cuGraphMemAllocNodeGetParams cuGraphMemFreeNodeGetParams
    cuGraphMemcpyNodeGetParams cuGraphMemcpyNodeSetParams cuGraphMemsetNodeGetParams
    cuGraphMemsetNodeSetParams cuGraphNodeFindInClone cuGraphNodeGetDependencies
    cuGraphNodeGetDependentNodes cuGraphNodeGetType cuGraphReleaseUserObject
    cuGraphRemoveDependencies cuGraphRetainUserObject cuGraphUpload cuGraphicsMapResources
    cuGraphicsResourceGetMappedMipmappedArray cuGraphicsResourceGetMappedPointer_v2
    cuGraphicsResourceSetMapFlags_v2 cuGraphicsSubResourceGetMappedArray cuGraphicsUnmapResources
    cuGraphicsUnregisterResource cuImportExternalMemory cuImportExternalSemaphore cuInit
    cuIpcCloseMemHandle cuIpcGetEventHandle cuIpcGetMemHandle cuIpcOpenEventHandle
    cuIpcOpenMemHandle_v2 cuLaunch cuLaunchCooperativeKernel cuLaunchCooperativeKernelMultiDevice
    cuLaunchGrid cuLaunchGridAsync cuLaunchHostFunc cuLaunchKernel cuLaunchKernelEx
    cuLinkAddData_v2 cuLinkAddFile_v2 cuLinkComplete cuLinkCreate_v2 cuLinkDestroy cuMemAddressFree
    cuMemAddressReserve cuMemAdvise cuMemAllocAsync cuMemAllocFromPoolAsync cuMemAllocHost_v2
    cuMemAllocManaged cuMemAllocPitch_v2 cuMemAlloc_v2 cuMemCreate cuMemExportToShareableHandle
    cuMemFreeAsync cuMemFreeHost cuMemFree_v2 cuMemGetAccess cuMemGetAddressRange_v2
    cuMemGetAllocationGranularity cuMemGetAllocationPropertiesFromHandle cuMemGetInfo_v2
    cuMemHostAlloc cuMemHostGetDevicePointer_v2 cuMemHostGetFlags cuMemHostRegister_v2
    cuMemHostUnregister cuMemImportFromShareableHandle cuMemMap cuMemMapArrayAsync cuMemPoolCreate
    cuMemPoolDestroy cuMemPoolExportPointer cuMemPoolExportToShareableHandle cuMemPoolGetAccess
    cuMemPoolGetAttribute cuMemPoolImportFromShareableHandle cuMemPoolImportPointer
    cuMemPoolSetAccess cuMemPoolSetAttribute cuMemPoolTrimTo cuMemPrefetchAsync
    cuMemRangeGetAttribute cuMemRangeGetAttributes cuMemRelease cuMemRetainAllocationHandle
    cuMemSetAccess cuMemUnmap cuMemcpy cuMemcpy2DAsync_v2 cuMemcpy2DUnaligned_v2 cuMemcpy2D_v2
    cuMemcpy3DAsync_v2 cuMemcpy3DPeer cuMemcpy3DPeerAsync cuMemcpy3D_v2 cuMemcpyAsync
    cuMemcpyAtoA_v2 cuMemcpyAtoD_v2 cuMemcpyAtoHAsync_v2 cuMemcpyAtoH_v2 cuMemcpyDtoA_v2
    cuMemcpyDtoDAsync_v2 cuMemcpyDtoD_v2 cuMemcpyDtoHAsync_v2 cuMemcpyDtoH_v2 cuMemcpyHtoAAsync_v2
    cuMemcpyHtoA_v2 cuMemcpyHtoDAsync_v2 cuMemcpyHtoD_v2 cuMemcpyPeer cuMemcpyPeerAsync
    cuMemsetD16Async cuMemsetD16_v2 cuMemsetD2D16Async cuMemsetD2D16_v2 cuMemsetD2D32Async
    cuMemsetD2D32_v2 cuMemsetD2D8Async cuMemsetD2D8_v2 cuMemsetD32Async cuMemsetD32_v2
    cuMemsetD8Async cuMemsetD8_v2 cuMipmappedArrayCreate cuMipmappedArrayDestroy
    cuMipmappedArrayGetLevel cuMipmappedArrayGetSparseProperties cuModuleGetFunction
    cuModuleGetGlobal_v2 cuModuleGetSurfRef cuModuleGetTexRef cuModuleLoad cuModuleLoadData
    cuModuleLoadDataEx cuModuleLoadFatBinary cuModuleUnload cuOccupancyAvailableDynamicSMemPerBlock
    cuOccupancyMaxActiveBlocksPerMultiprocessor
    cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags cuOccupancyMaxPotentialBlockSize
    cuOccupancyMaxPotentialBlockSizeWithFlags cuParamSetSize cuParamSetTexRef cuParamSetf
    cuParamSeti cuParamSetv cuPointerGetAttribute cuPointerGetAttributes cuPointerSetAttribute
    cuProfilerInitialize cuProfilerStart cuProfilerStop cuSignalExternalSemaphoresAsync
    cuStreamAddCallback cuStreamAttachMemAsync cuStreamBatchMemOp cuStreamBeginCapture_v2
    cuStreamCopyAttributes cuStreamCreate cuStreamCreateWithPriority cuStreamDestroy_v2
    cuStreamEndCapture cuStreamGetAttribute cuStreamGetCaptureInfo cuStreamGetCaptureInfo_v2
    cuStreamGetCtx cuStreamGetFlags cuStreamGetPriority cuStreamIsCapturing cuStreamQuery
    cuStreamSetAttribute cuStreamSynchronize cuStreamUpdateCaptureDependencies cuStreamWaitEvent
    cuStreamWaitValue32 cuStreamWaitValue64 cuStreamWriteValue32 cuStreamWriteValue64
    cuSurfObjectCreate cuSurfObjectDestroy cuSurfObjectGetResourceDesc cuSurfRefGetArray
    cuSurfRefSetArray cuTensorMapEncodeTiled cuTexObjectCreate cuTexObjectDestroy
    cuTexObjectGetResourceDesc cuTexObjectGetResourceViewDesc cuTexObjectGetTextureDesc
    cuTexRefCreate cuTexRefDestroy cuTexRefGetAddressMode cuTexRefGetAddress_v2 cuTexRefGetArray
    cuTexRefGetBorderColor cuTexRefGetFilterMode cuTexRefGetFlags cuTexRefGetFormat
    cuTexRefGetMaxAnisotropy cuTexRefGetMipmapFilterMode cuTexRefGetMipmapLevelBias
    cuTexRefGetMipmapLevelClamp cuTexRefGetMipmappedArray cuTexRefSetAddress2D_v3
    cuTexRefSetAddressMode cuTexRefSetAddress_v2 cuTexRefSetArray cuTexRefSetBorderColor
    cuTexRefSetFilterMode cuTexRefSetFlags cuTexRefSetFormat cuTexRefSetMaxAnisotropy
    cuTexRefSetMipmapFilterMode cuTexRefSetMipmapLevelBias cuTexRefSetMipmapLevelClamp
    cuTexRefSetMipmappedArray cuThreadExchangeStreamCaptureMode cuUserObjectCreate
    cuUserObjectRelease cuUserObjectRetain cuWaitExternalSemaphoresAsync
}
