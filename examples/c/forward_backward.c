/* Attention forward and backward, without a GPU and without the CUDA runtime:
 *
 *     forward_backward [emulated | emulated:sm_90a | cuda | cuda:N]
 *
 * Causal attention of 5 queries and 5 keys in two heads of q that share one of k and v. A derivative that is worked out
 * from two forward passes says whether the gradients are right. */

#include "finite_attention.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 5, QUERY_HEADS = 2, DIM = 8, MOST = ROWS * QUERY_HEADS * DIM };

static fattn_device *device;

/* Ends the program with the text of an error. */
static void check(int32_t status)
{
    if (status != FATTN_SUCCESS) {
        fprintf(stderr, "error %d: %s\n", status, fattn_last_error());
        exit(1);
    }
}

/* A dense tensor [1, ROWS, heads, DIM] in device memory: a copy of elements, or room where that is null. */
static fattn_tensor tensor(int64_t heads, const float *elements)
{
    fattn_tensor made = {0, {1, ROWS, heads, DIM}, {ROWS * heads * DIM, heads * DIM, DIM, 1}};
    uint64_t bytes = (uint64_t)(ROWS * heads * DIM) * sizeof(float);
    check(fattn_allocate(device, bytes, &made.address));
    if (elements)
        check(fattn_copy_to_device(device, made.address, elements, bytes, NULL));
    return made;
}

static void read(const fattn_tensor *from, float *to)
{
    check(fattn_copy_to_host(device, to, from->address, (uint64_t)from->strides[0] * sizeof(float), NULL));
}

/* o = softmax(q k^T / sqrt(DIM)) v, and lse for the backward pass. */
static void forward(fattn_attention *attention)
{
    fattn_forward_args args;
    check(fattn_forward_args_init(&args, sizeof args));
    args.attention = *attention;
    check(fattn_forward(device, &args, NULL));
}

/* The sum of o * d_o: the loss whose gradients are looked for. */
static double loss(fattn_attention *attention, const float *d_o)
{
    float o[MOST];
    double sum = 0;
    forward(attention);
    read(&attention->o, o);
    for (int i = 0; i < MOST; i++)
        sum += (double)o[i] * d_o[i];
    return sum;
}

/* The derivative of the loss by one element, from two forward passes. */
static double derivative(fattn_attention *attention, const float *d_o, const fattn_tensor *of, int element)
{
    const float step = 1.0f / 64;
    float elements[MOST];
    double losses[2];
    read(of, elements);
    for (int side = 0; side < 2; side++) {
        float moved = elements[element] + (side ? step : -step);
        uint64_t address = of->address + (uint64_t)element * sizeof(float);
        check(fattn_copy_to_device(device, address, &moved, sizeof moved, NULL));
        losses[side] = loss(attention, d_o);
        check(fattn_copy_to_device(device, address, &elements[element], sizeof(float), NULL));
    }
    return (losses[1] - losses[0]) / (2 * (double)step);
}

/* Numbers from -1 to 1, the same at each run. */
static void fill(float *elements, uint32_t seed)
{
    for (int i = 0; i < MOST; i++) {
        seed = seed * 1664525u + 1013904223u;
        elements[i] = (float)(seed >> 8) / 8388608.0f - 1;
    }
}

int main(int count, char **arguments)
{
    float q[MOST], k[MOST], v[MOST], d_o[MOST], gradient[MOST];
    fill(q, 1), fill(k, 2), fill(v, 3), fill(d_o, 4);
    check(fattn_device_open(count > 1 ? arguments[1] : "emulated", &device));

    fattn_backward_args args;
    check(fattn_backward_args_init(&args, sizeof args));
    fattn_attention *attention = &args.attention;
    attention->dtype = FATTN_F32;
    attention->mask = FATTN_CAUSAL;
    attention->q = tensor(QUERY_HEADS, q);
    attention->k = tensor(1, k);
    attention->v = tensor(1, v);
    attention->o = tensor(QUERY_HEADS, NULL);
    check(fattn_allocate(device, ROWS * QUERY_HEADS * sizeof(float), &attention->lse));
    forward(attention);

    args.d_o = tensor(QUERY_HEADS, d_o);
    args.dq = tensor(QUERY_HEADS, NULL);
    args.dk = tensor(1, NULL);
    args.dv = tensor(1, NULL);
    check(fattn_backward_workspace_bytes(device, &args, &args.workspace_bytes));
    check(fattn_allocate(device, args.workspace_bytes, &args.workspace));
    check(fattn_backward(device, &args, NULL));
    check(fattn_synchronize(device, NULL));

    const struct { const char *name; const fattn_tensor *of, *gradient; } parts[] = {
        {"dq", &attention->q, &args.dq}, {"dk", &attention->k, &args.dk}, {"dv", &attention->v, &args.dv}};
    int wrong = 0;
    printf("finite-attention %s\n", fattn_version());
    for (int part = 0; part < 3; part++) {
        memset(gradient, 0, sizeof gradient);
        read(parts[part].gradient, gradient);
        for (int element = 25; element < 28; element++) {
            double expected = derivative(attention, d_o, parts[part].of, element);
            printf("%s[%d] = %9.5f, %9.5f from two losses\n", parts[part].name, element, gradient[element], expected);
            wrong += !(fabs(gradient[element] - expected) < 2e-3);
        }
    }

    const uint64_t addresses[] = {attention->q.address, attention->k.address, attention->v.address,
                                  attention->o.address, attention->lse,       args.d_o.address,
                                  args.dq.address,      args.dk.address,      args.dv.address,
                                  args.workspace};
    for (size_t i = 0; i < sizeof addresses / sizeof *addresses; i++)
        check(fattn_free(device, addresses[i]));
    fattn_device_close(device);
    if (wrong)
        fprintf(stderr, "%d gradients are wrong\n", wrong);
    return wrong != 0;
}
