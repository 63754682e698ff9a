/* The guards of training: loss scaling, clipping by the global norm, and scans.
 *
 *     training_guards [emulated | emulated:sm_90a | cuda | cuda:N]
 *
 * Four steps of training, of whose gradients the second has overflowed: it is left out, and the scale halved. */

#include "finite_attention.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { OPTIMIZER = 0, SIZE = 6 };

static fattn_device *device;

/* Ends the program with the text of an error. */
static void check(int32_t status)
{
    if (status != FATTN_SUCCESS) {
        fprintf(stderr, "error %d: %s\n", status, fattn_last_error());
        exit(1);
    }
}

int main(int count, char **arguments)
{
    const int64_t shape[] = {2, 3};
    const float unscaled[SIZE] = {3, 0, 4, 0, 12, 0}; /* of norm 13 */
    fattn_device_tensor weights = {.name = "weights", .shape = shape, .rank = 2, .dtype = FATTN_F32};
    fattn_grad_scaler *scaler;
    float scale;
    int taken = 0;

    check(fattn_device_open(count > 1 ? arguments[1] : "emulated", &device));
    check(fattn_allocate(device, sizeof unscaled, &weights.address));
    check(fattn_grad_scaler_create(NULL, &scaler));
    check(fattn_grad_scaler_scale(scaler, &scale));
    for (int step = 0; step < 4; step++) {
        /* What a backward pass gives that starts from the loss times the scale. */
        float gradients[SIZE];
        for (int i = 0; i < SIZE; i++)
            gradients[i] = unscaled[i] * scale;
        if (step == 1)
            gradients[5] = INFINITY;
        check(fattn_copy_to_device(device, weights.address, gradients, sizeof gradients, NULL));

        fattn_scan_result found;
        check(fattn_scan(device, &weights, &found, NULL));
        if (found.first >= 0)
            printf("step %d: not finite first at [%d, %d]\n", step, (int)found.first / 3, (int)found.first % 3);

        uint64_t non_finite;
        int32_t take;
        check(fattn_grad_scaler_unscale(scaler, device, OPTIMIZER, &weights, 1, &non_finite, NULL));
        check(fattn_grad_scaler_step(scaler, OPTIMIZER, &take));
        if (take) {
            float norm, coefficient;
            check(fattn_clip_by_global_norm(device, &weights, 1, 1.0f, FATTN_REFUSE, &norm, &coefficient, NULL));
            check(fattn_scan(device, &weights, &found, NULL));
            printf("step %d: norm %g, clipped to %g; the optimizer takes its step\n", step, norm, found.norm);
            taken += fabs(norm - 13) < 1e-4 && fabs(found.norm - 1) < 1e-4;
        } else {
            printf("step %d: left out, %d of 1 tensors are not finite\n", step, (int)non_finite);
        }
        check(fattn_grad_scaler_update(scaler, &scale));
    }
    printf("%d steps taken, scale %g\n", taken, scale);

    fattn_grad_scaler_destroy(scaler);
    check(fattn_free(device, weights.address));
    fattn_device_close(device);
    return taken != 3 || scale != 32768;
}
