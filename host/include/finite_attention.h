/* finite-attention for C and whatever can call C: libfinite_attention.so.
 *
 *     fattn_device *device;
 *     fattn_forward_args args;
 *     if (fattn_device_open("cuda", &device) != FATTN_SUCCESS ||         // or "emulated": no GPU, every access
 *         fattn_forward_args_init(&args, sizeof args) != FATTN_SUCCESS)  // checked
 *         return puts(fattn_last_error());
 *     args.attention.dtype = FATTN_BF16;
 *     args.attention.mask = FATTN_CAUSAL;
 *     args.attention.q = ...;                                            // k, v, o; memory by fattn_allocate
 *     if (fattn_forward(device, &args, stream) != FATTN_SUCCESS || fattn_synchronize(device, stream) != FATTN_SUCCESS)
 *         return puts(fattn_last_error());
 *
 * examples/c has whole programs.
 *
 * Work is queued on a stream and not waited for, unless a function says so. A GPU is opened in its primary context,
 * so that addresses and streams of the CUDA runtime and of PyTorch can be passed as they are. Addresses are those of
 * device memory: of fattn_allocate, of the CUDA runtime or driver, or of another library; for the emulator, of
 * fattn_allocate alone.
 *
 * Functions that return int32_t return 0, or another number of fattn_status; fattn_last_error then has the text.
 * Arguments are checked before anything is done: what is wrong is named, with what was expected and what came. On a
 * GPU it cannot be checked whether addresses point to enough memory; the emulator says so.
 *
 * Structs of arguments begin with their size, and grow at their end alone: programs that were compiled with an
 * earlier version of this file run with later libraries of the same SONAME.
 *
 * A device can be used by several threads at once. */

#ifndef FINITE_ATTENTION_H
#define FINITE_ATTENTION_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What functions return. */
enum fattn_status {
    FATTN_SUCCESS = 0,          /* done, or queued */
    FATTN_INVALID_ARGUMENT = 1, /* an argument is wrong; nothing was done */
    FATTN_NO_DEVICE = 2,        /* there is no such device */
    FATTN_DEVICE_FAILED = 3,    /* the device, its driver or the emulator failed, or memory is used up */
    FATTN_PANICKED = 4,         /* the library is at fault */
    FATTN_NON_FINITE = 5        /* the norm of gradients is not finite, and nothing was changed; or, of a pass in
                                   anomaly mode, a tensor is not finite */
};

/* The version of the library that this file is of: what fattn_version gives. */
#define FATTN_VERSION "0.1.0"

/* Element types. */
enum fattn_dtype {
    FATTN_SAME = -1, /* where a field says that it may be another one's, that one's; what fattn_*_args_init writes */
    FATTN_BF16 = 0,
    FATTN_F16 = 1,
    FATTN_F32 = 2
};

/* Which keys a query sees, of those of its sequence. */
enum fattn_mask {
    FATTN_FULL = 0,         /* all */
    FATTN_CAUSAL = 1,       /* those up to the diagonal */
    FATTN_WINDOW = 2,       /* those from window_left before the diagonal to window_right after it */
    FATTN_CAUSAL_WINDOW = 3 /* those of FATTN_WINDOW that are also those of FATTN_CAUSAL */
};

/* Where the diagonal of a mask is: which key query i stands at, of Sq queries and Sk keys. */
enum fattn_alignment {
    FATTN_BOTTOM_RIGHT = 0, /* i + Sk - Sq: the last query stands at the last key */
    FATTN_TOP_LEFT = 1      /* i: the first query stands at the first key */
};

/* Whether query heads that share a key head are worked on together, as if they were queries. It needs a
 * kernel for Hopper, or a single query. */
enum fattn_pack_gqa {
    FATTN_PACK_GQA_AUTO = 0,   /* where it pays off, above all with few queries */
    FATTN_PACK_GQA_ALWAYS = 1, /* where it can be done */
    FATTN_PACK_GQA_NEVER = 2
};

/* How products of f32 are made. Not looked at for other dtypes. */
enum fattn_precision {
    FATTN_PRECISION_AUTO = 0,  /* the faster one of both, which are as exact; one choice for a forward and its
                                  backward, if both have the same tensors, lengths and options */
    FATTN_PRECISION_FAST3 = 1, /* on tensor cores, each number as the sum of two f16; as FATTN_PRECISION_FMA where
                                  no kernel does that, or numbers are such that it is not as exact */
    FATTN_PRECISION_FMA = 2    /* fused multiply-adds */
};

/* A device. */
typedef struct fattn_device fattn_device;

/* A tensor of four dimensions in the order batch, row, head, column, whatever their order in memory.
 *
 * Columns have stride 1. Other strides of inputs are any, 0 and negative included; those of outputs are
 * positive, and such that no two elements share an address. A tensor without elements needs no address. */
typedef struct {
    uint64_t address;   /* of element (0, 0, 0, 0), a multiple of the element size */
    int64_t shape[4];   /* sizes of at least 0; of columns 1 to 256, of rows at most 1073741568 */
    int64_t strides[4]; /* in elements */
} fattn_tensor;

/* What forward and backward share: o = softmax(scale * q k^T + mask) v, and lse, the logarithm of the sum of
 * exponentials of each row. With a softcap, softcap * tanh(scale * q k^T / softcap) takes the place of
 * scale * q k^T.
 *
 * Of B batches, Sq queries of Hq heads and Sk keys of Hk heads; Hq is a multiple of Hk, and query head h uses
 * key head h / (Hq / Hk). A query that sees no key has o = 0 and lse = -infinity.
 *
 * Packed sequences stand one after another along the rows: B is 1, Sq is Tq and Sk is Tk, the rows of all
 * together. Offsets ascend from 0 to Tq or Tk; sequence i has the rows from offset i to offset i + 1. */
typedef struct {
    int32_t dtype;        /* fattn_dtype of q, k, v and d_o */
    int32_t output_dtype; /* fattn_dtype of o: that of q (FATTN_SAME), or FATTN_F32 */
    int32_t mask;         /* fattn_mask */
    int32_t alignment;    /* fattn_alignment */
    int64_t window_left;  /* keys seen before the diagonal, -1 for all; 0 or -1 without a window */
    int64_t window_right; /* keys seen after the diagonal, -1 for all; 0 or -1 without a window */
    float scale;          /* of the scores, at most 1.179e38 in size; NaN for D ^ -0.5. With 0, as in a struct
                             that is all 0, every key counts the same: fattn_*_args_init writes NaN */
    float softcap;        /* cap of the scores, above 0, at most 1.179e38; 0 for none */
    fattn_tensor q;       /* [B, Sq, Hq, D] */
    fattn_tensor k;       /* [B, Sk, Hk, D] */
    fattn_tensor v;       /* [B, Sk, Hk, Dv] */
    fattn_tensor o;       /* [B, Sq, Hq, Dv] */
    uint64_t lse;          /* address of float [B, Hq, Sq], packed [Hq, Tq], dense */
    uint64_t cu_seqlens_q; /* address of int32_t [sequences + 1]; both are 0 unless sequences are packed */
    uint64_t cu_seqlens_k; /* address of int32_t [sequences + 1] */
    int64_t sequences;      /* how many are packed; this and the next two are 0 unless there are offsets */
    int64_t max_query_rows; /* no sequence of q is longer; may be more than the longest, at most 1073741568 */
    int64_t max_key_rows;   /* no sequence of k is longer; may be more than the longest, at most 1073741568 */
} fattn_attention;

/* The bits of a boolean mask, made by fattn_prepare_mask. */
typedef struct fattn_mask_bits fattn_mask_bits;

/* What scores have beside q and k; what is 0 is not there. In this order: scale * q k^T is capped, the bias
 * is added, slope * |i + Sk - Sq - j| of query i and key j is subtracted (|i - j| with FATTN_TOP_LEFT and a
 * causal mask or a window), and keys that the mask hides, or a bias of -infinity, are left out.
 *
 * A bias, and the tensor that a mask is made of, are [batch, head, query, key]: each size is that of the
 * problem, or 1, which stands for all; that of the heads may also be Hk. Of packed sequences they are how
 * many there are, max_query_rows and max_key_rows, and queries and keys are counted within each. Strides are
 * any, that of keys and 0 and negative ones included. */
typedef struct {
    fattn_tensor bias;           /* its address is 0 if there is none */
    int32_t bias_dtype;          /* fattn_dtype of bias: that of q (FATTN_SAME), or FATTN_F32 */
    int32_t alibi_per_batch;     /* 1 for slopes [B, Hq], 0 for [Hq] */
    const fattn_mask_bits *mask; /* which keys a query sees, beside attention.mask; null if there is none */
    uint64_t alibi_slopes;       /* address of float [Hq] or [B, Hq], dense */
    uint64_t sinks;              /* address of float [Hq]: exp(sink) is added to the sums of its head */
} fattn_scores;

/* Which probabilities are dropped at random; those that are kept grow in proportion, and lse is what it is
 * without. Seed, offset, batch (or packed sequence), query head, query and key say which, so that a backward
 * pass with the same numbers drops the same ones. All 0 for no dropout. */
typedef struct {
    float rate;        /* the share that is dropped, from 0 to below 1 - 2 ^ -17, in steps of 2 ^ -16 */
    uint32_t reserved; /* 0 */
    uint64_t seed;     /* of the numbers */
    uint64_t offset;   /* which numbers of the seed, such as the count of calls before */
} fattn_dropout;

/* How attention under a dynamic mask goes about it. */
enum fattn_dynamic_way {
    FATTN_DYNAMIC_ANY = 0,   /* what costs less */
    FATTN_DYNAMIC_MASK = 1,  /* tiles without a chosen key are skipped */
    FATTN_DYNAMIC_GATHER = 2 /* chosen keys are gathered, where all queries have one choice */
};

/* Which keys a bias chooses: see docs/dynamic-masks.md. */
typedef struct {
    int64_t window;     /* how many of each row, the largest; 0 for those above 0 */
    int64_t block_size; /* keys that are kept or dropped together; 0 and 1 for each by itself */
    int32_t way;        /* fattn_dynamic_way */
    uint32_t reserved;  /* 0 */
} fattn_dynamic_mask;

/* Keys that a bias has chosen, made by fattn_choose_keys. */
typedef struct fattn_chosen_keys fattn_chosen_keys;

/* Which of several passes over some of the keys of the same queries one is. */
typedef struct {
    uint64_t state;        /* address, a multiple of 16, of what passes leave to each other; not looked at if the pass is
                              first and last */
    uint32_t is_first;     /* 1: what the state holds does not matter */
    uint32_t is_last;      /* 1: o and lse, or dq, are written, and not the state */
    uint32_t total_keys;   /* forward: keys of the queries in all passes together, of packed sequences of the longest */
    uint32_t adds_to_keys; /* backward: 1 if dk and dv, which are FATTN_F32, are added to what is there */
    uint32_t dq_f32;       /* backward: 1 for dq of FATTN_F32, 0 for the dtype of q; gradients_f32 is for dk and dv */
    uint32_t reserved;     /* 0 */
} fattn_partial;

/* Of fattn_forward. Writes attention.o, and attention.lse unless its address is 0. */
typedef struct {
    uint32_t struct_bytes; /* sizeof(fattn_forward_args). Those of earlier versions, which ended before
                              scores, dropout or precision, are known too; a caller of another one is told, not
                              misread */
    uint32_t num_splits;   /* ranges of keys worked on side by side, 1 to 128; of packed sequences those of
                              the longest; 0 for as many as pay off. One where FATTN_PRECISION_AUTO is
                              FATTN_PRECISION_FAST3 */
    int32_t pack_gqa;      /* fattn_pack_gqa */
    uint32_t reserved;     /* 0 */
    fattn_attention attention;
    fattn_scores scores;
    fattn_dropout dropout;
    int32_t precision;     /* fattn_precision */
    uint32_t reserved_2;   /* 0 */
} fattn_forward_args;

/* Of fattn_backward. Reads attention.o and attention.lse: what the forward pass gave. */
typedef struct {
    uint32_t struct_bytes; /* sizeof(fattn_backward_args), or as in fattn_forward_args */
    uint32_t reserved;     /* 0 */
    fattn_attention attention;
    int32_t deterministic;    /* 1 for gradients that are the same bits from run to run, else 0 */
    int32_t gradients_f32;    /* 1 for dq, dk and dv of FATTN_F32, 0 for the dtype of q */
    fattn_tensor d_o;         /* [B, Sq, Hq, Dv]: the gradient of o */
    fattn_tensor dq;          /* [B, Sq, Hq, D], written */
    fattn_tensor dk;          /* [B, Sk, Hk, D], written */
    fattn_tensor dv;          /* [B, Sk, Hk, Dv], written */
    uint64_t d_lse;           /* address of the gradient of lse, float like lse, or 0 without one */
    uint64_t workspace;       /* address, a multiple of 256; what is there does not matter */
    uint64_t workspace_bytes; /* at least what fattn_backward_workspace_bytes says */
    fattn_scores scores;      /* as in the forward pass */
    fattn_tensor d_bias;      /* of the shape of bias, written; its address is 0 if it is not wanted */
    int32_t d_bias_f32;       /* 1 for d_bias of FATTN_F32, 0 for the dtype of bias */
    uint32_t reserved_2;      /* 0 */
    uint64_t d_sinks;         /* address of float [Hq], written, or 0 if it is not wanted */
    fattn_dropout dropout;    /* that of the forward pass */
    int32_t precision;        /* fattn_precision; that of the forward pass, so that scores are off alike. With
                                 FATTN_PRECISION_FAST3, and ranges of keys in the forward pass,
                                 FATTN_PRECISION_FMA */
    uint32_t reserved_3;      /* 0 */
} fattn_backward_args;

/* What samples of multi-scale deformable attention take from outside a level. */
enum fattn_padding {
    FATTN_PADDING_ZEROS = 0,
    FATTN_PADDING_BORDER = 1 /* the nearest cell */
};

/* Most levels of multi-scale deformable attention. */
#define FATTN_MSDA_MAX_LEVELS 16

/* What forward and backward of multi-scale deformable attention share, as in Deformable DETR: of B batches, N
 * queries, H heads of C channels, L levels and P points in each. Locations are x, y, from 0 to 1 across a level.
 * Their tensors have the points of all levels as columns; strides are as for attention, C is 1 to 32768. */
typedef struct {
    int32_t dtype;           /* fattn_dtype of value, o and d_o */
    int32_t locations_dtype; /* that of locations: FATTN_F32, or that of value (FATTN_SAME) */
    int32_t weights_dtype;   /* that of weights: FATTN_F32, or that of value (FATTN_SAME) */
    int32_t padding;         /* fattn_padding */
    int32_t align_corners;   /* 1: locations 0 and 1 are the centres of the outermost cells; 0: their outer edges */
    int32_t levels;          /* L, 1 to FATTN_MSDA_MAX_LEVELS */
    int64_t level_points;    /* P */
    int64_t shapes[FATTN_MSDA_MAX_LEVELS][2]; /* height and width of each level; those beyond L are not looked at */
    fattn_tensor value;      /* [B, cells, H, C]: the cells of level 0, row after row, then those of level 1, ... */
    fattn_tensor locations;  /* [B, N, H, L * P * 2] */
    fattn_tensor weights;    /* [B, N, H, L * P] */
} fattn_msda;

/* Of fattn_msda_forward. */
typedef struct {
    uint32_t struct_bytes; /* sizeof(fattn_msda_forward_args) */
    uint32_t reserved;     /* 0 */
    fattn_msda msda;
    fattn_tensor o;        /* [B, N, H, C], written */
} fattn_msda_forward_args;

/* Of fattn_msda_backward. Gradients have the dtypes of what they are the gradients of. */
typedef struct {
    uint32_t struct_bytes;    /* sizeof(fattn_msda_backward_args) */
    int32_t deterministic;    /* 1 for gradients that are the same bits from run to run, else 0 */
    fattn_msda msda;
    fattn_tensor d_o;         /* [B, N, H, C]: the gradient of o */
    fattn_tensor d_value;     /* [B, cells, H, C], written */
    fattn_tensor d_locations; /* [B, N, H, L * P * 2], written */
    fattn_tensor d_weights;   /* [B, N, H, L * P], written */
    uint64_t workspace;       /* address, a multiple of 256; what is there does not matter */
    uint64_t workspace_bytes; /* at least what fattn_msda_backward_workspace_bytes says */
} fattn_msda_backward_args;

/* Opens a device by its name: "cuda", "cuda:N", "cuda:N:sm_80" (only the kernels of that target), "emulated",
 * "emulated:sm_80" or "emulated:sm_90a". */
int32_t fattn_device_open(const char *name, fattn_device **device);

/* Arguments as they should be before any is set: no tensors, no mask (a window that is asked for is open on both
 * sides), the scale D ^ -0.5, nothing of scores, no dropout, the fast mode, and struct_bytes. dtype is none yet: it
 * must be set; others follow it. struct_bytes is sizeof *args, of this version or of an earlier one. */
int32_t fattn_forward_args_init(fattn_forward_args *args, uint32_t struct_bytes);
int32_t fattn_backward_args_init(fattn_backward_args *args, uint32_t struct_bytes);
int32_t fattn_msda_forward_args_init(fattn_msda_forward_args *args, uint32_t struct_bytes);
int32_t fattn_msda_backward_args_init(fattn_msda_backward_args *args, uint32_t struct_bytes);

/* Allocates device memory: its address, a multiple of 256, or 0 for 0 bytes. What is there is undefined, and of the
 * emulator counts as never written. */
int32_t fattn_allocate(const fattn_device *device, uint64_t bytes, uint64_t *address);

/* Frees what fattn_allocate gave, behind all work on the default stream. Work on other streams must have been waited
 * for. Address 0 is allowed. */
int32_t fattn_free(const fattn_device *device, uint64_t address);

/* Copies bytes from the host to the device, or from the device to the host, behind all work on the stream. Done when
 * they return; they report what went wrong on the stream before, too. */
int32_t fattn_copy_to_device(const fattn_device *device, uint64_t destination, const void *source, uint64_t bytes,
                             void *stream);
int32_t fattn_copy_to_host(const fattn_device *device, void *destination, uint64_t source, uint64_t bytes,
                           void *stream);

/* Waits for all work on a stream, and reports what went wrong since the last call. */
int32_t fattn_synchronize(const fattn_device *device, void *stream);

/* Queues a forward pass on a stream (CUstream or cudaStream_t; a null pointer is the default stream). Until
 * it is done the inputs, those of scores among them, must stay as they are. Outputs share no memory with
 * them or each other. Where there are few queries and many keys, a workspace is allocated and freed in the
 * order of the stream, if there is memory for it; it stays with the device until that is closed. A captured
 * graph allocates and frees it, too. */
int32_t fattn_forward(const fattn_device *device, const fattn_forward_args *args, void *stream);

/* Queues a backward pass on a stream. As fattn_forward; nothing else may use the workspace until it is
 * done. */
int32_t fattn_backward(const fattn_device *device, const fattn_backward_args *args, void *stream);

/* Loads the kernels that fattn_forward, or fattn_backward, would launch for these arguments, addresses
 * included: how tensors are aligned decides which these are. Waits until they are loaded, side by side; the
 * first call then takes no longer than others. No tensor is touched, nor is the workspace looked at. */
int32_t fattn_prepare_forward(const fattn_device *device, const fattn_forward_args *args);
int32_t fattn_prepare_backward(const fattn_device *device, const fattn_backward_args *args);

/* How many bytes of workspace fattn_backward needs for these arguments, addresses included: how tensors are
 * aligned decides which kernel runs. The workspace in args is not looked at, and no tensor is touched. */
int32_t fattn_backward_workspace_bytes(const fattn_device *device, const fattn_backward_args *args,
                                       uint64_t *bytes);

/* Queues on a stream what makes bits of a boolean mask, and a map of its tiles, of which passes skip the empty
 * ones: a tensor of bytes, 0 where a query does not see a
 * key, as fattn_scores says, for problems of so many keys (Sk; of packed sequences max_key_rows). One mask
 * serves any number of passes on the device that are queued behind it. The tensor must stay as it is until
 * that is done. */
int32_t fattn_prepare_mask(const fattn_device *device, const fattn_tensor *mask, int64_t keys,
                           fattn_mask_bits **prepared, void *stream);

/* Frees a prepared mask. Work that uses it must have been waited for. A null pointer is allowed. */
void fattn_free_mask(fattn_mask_bits *prepared);

/* Queues on a stream the choice of keys of a forward pass by its bias, which must be there; scores.mask is a
 * padding mask, whose hidden keys are not chosen. o and lse are not touched. The choice serves any number of
 * forward and backward passes of these arguments that are queued behind it; q, k, v, bias and mask must stay
 * as they are. */
int32_t fattn_choose_keys(const fattn_device *device, const fattn_forward_args *args,
                          const fattn_dynamic_mask *mask, fattn_chosen_keys **chosen, void *stream);

/* Queues the choice anew, by the bias as it is now, without allocating: behind all work that uses the last
 * one, on the same stream. */
int32_t fattn_choose_keys_again(const fattn_chosen_keys *chosen, const fattn_forward_args *args, void *stream);

/* As fattn_forward and fattn_backward, over chosen keys, with the arguments that they were chosen with. The
 * workspace is not looked at: the call has its own. Gradients of keys that were not chosen are 0. */
int32_t fattn_dynamic_forward(const fattn_chosen_keys *chosen, const fattn_forward_args *args, void *stream);
int32_t fattn_dynamic_backward(const fattn_chosen_keys *chosen, const fattn_backward_args *args, void *stream);

/* Frees chosen keys. Work that uses them must have been waited for. A null pointer is allowed. */
void fattn_free_chosen_keys(fattn_chosen_keys *chosen);

/* Queues one of several passes over some of the keys of the same queries, one after the other in any order, each
 * of which merges with what those before it have left: as fattn_forward and fattn_backward, with the keys, the
 * mask, the bias and the boolean mask of this pass; sinks count in the last one; no ALiBi and no dropout. The
 * backward takes o and lse of all keys. What passes leave is float, and is rounded once. f32 is by
 * FATTN_PRECISION_FMA, and so must o and lse be, where they come from fattn_forward. */
int32_t fattn_forward_partial(const fattn_device *device, const fattn_forward_args *args, const fattn_partial *partial,
                              void *stream);
int32_t fattn_backward_partial(const fattn_device *device, const fattn_backward_args *args,
                               const fattn_partial *partial, void *stream);

/* How many bytes the state of such passes needs, and the workspace of a backward one. */
int32_t fattn_forward_state_bytes(const fattn_device *device, const fattn_forward_args *args, uint64_t *bytes);
int32_t fattn_backward_state_bytes(const fattn_device *device, const fattn_backward_args *args, uint64_t *bytes);
int32_t fattn_backward_partial_workspace_bytes(const fattn_device *device, const fattn_backward_args *args,
                                               const fattn_partial *partial, uint64_t *bytes);

/* Queues a forward pass of multi-scale deformable attention on a stream. As fattn_forward, without workspace. */
int32_t fattn_msda_forward(const fattn_device *device, const fattn_msda_forward_args *args, void *stream);

/* Queues a backward pass of multi-scale deformable attention on a stream. As fattn_backward. */
int32_t fattn_msda_backward(const fattn_device *device, const fattn_msda_backward_args *args, void *stream);

/* Loads the kernels that fattn_msda_forward, or fattn_msda_backward, would launch for these arguments. As
 * fattn_prepare_forward. */
int32_t fattn_msda_prepare_forward(const fattn_device *device, const fattn_msda_forward_args *args);
int32_t fattn_msda_prepare_backward(const fattn_device *device, const fattn_msda_backward_args *args);

/* How many bytes of workspace fattn_msda_backward needs. As fattn_backward_workspace_bytes. */
int32_t fattn_msda_backward_workspace_bytes(const fattn_device *device, const fattn_msda_backward_args *args,
                                            uint64_t *bytes);

/* Training. Guards look at tensors in device memory, and change them in place: any rank and strides, but no more than
 * four dimensions that do not follow on each other. They wait for their end. */
typedef struct {
    uint64_t address;       /* of the element whose indices are all 0 */
    const char *name;       /* what errors call it; null for tensors[i] */
    const int64_t *shape;   /* rank sizes */
    const int64_t *strides; /* rank strides in elements; null for dense, the last dimension the fastest */
    int32_t rank;           /* dimensions, also 0: then there is one element */
    int32_t dtype;          /* fattn_dtype */
} fattn_device_tensor;

/* What is in a tensor. */
typedef struct {
    uint64_t nan;
    uint64_t positive_infinity;
    uint64_t negative_infinity;
    int64_t first; /* the first that is not finite, counted in logical order, the last dimension the fastest; or -1 */
    double norm;   /* the square root of the sum of squares; NaN or infinite if an element is */
} fattn_scan_result;

/* Scans one tensor, in one pass behind all work on the stream. */
int32_t fattn_scan(const fattn_device *device, const fattn_device_tensor *tensor, fattn_scan_result *result,
                   void *stream);

/* What is done about a norm of gradients that is not finite. */
enum fattn_non_finite {
    FATTN_REFUSE = 0,  /* FATTN_NON_FINITE, whose text names the first tensor at fault; nothing is changed */
    FATTN_MULTIPLY = 1 /* gradients are multiplied all the same, as PyTorch does by default */
};

/* Multiplies gradients in place, so that the norm of all of them together is at most max_norm, by the rule of
 * torch.nn.utils.clip_grad_norm_: coefficient = min(1, max_norm / (total_norm + 1e-6)). Null is allowed for where
 * the norm and the coefficient go. */
int32_t fattn_clip_by_global_norm(const fattn_device *device, const fattn_device_tensor *tensors, uint64_t count,
                                  float max_norm, int32_t non_finite, float *total_norm, float *coefficient,
                                  void *stream);

/* A scale for the loss that finds itself, by the rules of torch.amp.GradScaler. In a step of training: the loss, or
 * d_o, is multiplied by fattn_grad_scaler_scale; for each optimizer, a number of the caller's choice,
 * fattn_grad_scaler_unscale divides its gradients, and fattn_grad_scaler_step says whether it may take its step; then
 * fattn_grad_scaler_update. A scaler is used by one thread at a time. */
typedef struct fattn_grad_scaler fattn_grad_scaler;

/* What a scaler is between two steps, for a checkpoint. */
typedef struct {
    double growth_factor;     /* of the scale after clean steps, above 1; usually 2 */
    double backoff_factor;    /* of the scale where something was not finite, above 0 and below 1; usually 0.5 */
    float scale;              /* usually 65536 at the start */
    uint32_t growth_interval; /* clean steps before it grows, at least 1; usually 2000 */
    uint32_t growth_tracker;  /* clean steps since it last changed */
    uint32_t reserved;        /* 0 */
} fattn_grad_scaler_values;

/* Makes a scaler in a state; null for the usual one. */
int32_t fattn_grad_scaler_create(const fattn_grad_scaler_values *state, fattn_grad_scaler **scaler);

/* Frees a scaler. A null pointer is allowed. */
void fattn_grad_scaler_destroy(fattn_grad_scaler *scaler);

/* What the loss is to be multiplied by. */
int32_t fattn_grad_scaler_scale(const fattn_grad_scaler *scaler, float *scale);

/* What a checkpoint needs. */
int32_t fattn_grad_scaler_state(const fattn_grad_scaler *scaler, fattn_grad_scaler_values *state);

/* Divides an optimizer's gradients by the scale in place, one pass over each, and says how many of them were not
 * finite. Once for each optimizer, before its step. */
int32_t fattn_grad_scaler_unscale(fattn_grad_scaler *scaler, const fattn_device *device, uint64_t optimizer,
                                  const fattn_device_tensor *tensors, uint64_t count, uint64_t *non_finite,
                                  void *stream);

/* The same for gradients that other code has unscaled: found_non_finite is 1 if one was not finite, else 0. */
int32_t fattn_grad_scaler_note_unscaled(fattn_grad_scaler *scaler, uint64_t optimizer, int32_t found_non_finite);

/* Whether an optimizer may take its step: 1, or 0 if a gradient of it was not finite. */
int32_t fattn_grad_scaler_step(fattn_grad_scaler *scaler, uint64_t optimizer, int32_t *take);

/* Ends a step of training: the scale of the next one. */
int32_t fattn_grad_scaler_update(fattn_grad_scaler *scaler, float *scale);

/* Passes in anomaly mode: fattn_forward and fattn_backward, with a look at every tensor that they were given and gave,
 * and an end that is waited for. FATTN_NON_FINITE if one is not finite; fattn_last_error then says which, how many
 * elements, the first index, and where all inputs are finite the stage that made the first such value, which the smallest
 * part of the pass shows in the emulator. Minus infinity in lse, a bias and a sink is meant. The backward pass has a
 * workspace of its own; what is between the elements of an input must be readable. */
int32_t fattn_anomaly_forward(const fattn_device *device, const fattn_forward_args *args, void *stream);
int32_t fattn_anomaly_backward(const fattn_device *device, const fattn_backward_args *args, void *stream);

/* Closes a device. Work queued on it must have been waited for. A null pointer is allowed. */
void fattn_device_close(fattn_device *device);

/* The version of the library, as in FATTN_VERSION of the header that it comes with. */
const char *fattn_version(void);

/* Text of this thread's last failed call, valid until its next failed call; empty before the first one. */
const char *fattn_last_error(void);

#ifdef __cplusplus
}
#endif

#endif
