//! What an H200 gave where PTX leaves it open, or where it is easily taken for something else.

mod common;
use common::{evaluate, run_clean};

/// The results of an instruction on columns of sources, each of so many bits.
fn results<const N: usize>(template: &str, bits: u32, sources: [(u32, &[u64]); N]) -> Vec<u64> {
    let sources = sources.map(|(bits, column)| (bits, column.to_vec()));
    let mask = if bits == 64 { !0 } else { (1 << bits) - 1 };
    evaluate(template, bits, &sources).into_iter().map(|value| value & mask).collect()
}

#[test]
fn a_remainder_by_zero_is_all_ones() {
    for (ty, bits) in [("u16", 16), ("s16", 16), ("u32", 32), ("s32", 32), ("u64", 64), ("s64", 64)] {
        let got = results(
            &format!("rem.{ty} {{d}}, {{a}}, {{b}};"),
            bits,
            [(bits, &[11, 11]), (bits, &[0, 4])],
        );
        assert_eq!(got, [!0 >> (64 - bits), 3], "{ty}");
    }
}

#[test]
fn zero_is_a_normal_number() {
    let singles = [0, 0x8000_0000, 1, 0x0080_0000, 0x7f80_0000, 0x7fc0_0000];
    assert_eq!(results("testp.normal.f32 {d}, {a};", 1, [(32, &singles)]), [1, 1, 0, 1, 0, 0]);
    let doubles = [0, 1 << 63, 1, 1 << 52, 0x7ff << 52, 0x7ff8 << 48];
    assert_eq!(results("testp.normal.f64 {d}, {a};", 1, [(64, &doubles)]), [1, 1, 0, 1, 0, 0]);
}

#[test]
fn signs_of_halves_change_but_those_of_nan() {
    let halves: [u64; 5] = [0x3c00, 0x8000, 0x7e00, 0xfe01, 0x8001];
    assert_eq!(results("neg.f16 {d}, {a};", 16, [(16, &halves)]), [0xbc00, 0, 0x7fff, 0x7fff, 1]);
    assert_eq!(results("abs.f16 {d}, {a};", 16, [(16, &halves)]), [0x3c00, 0, 0x7fff, 0x7fff, 1]);
    assert_eq!(results("neg.ftz.f16 {d}, {a};", 16, [(16, &halves)]), [0xbc00, 0, 0x7fff, 0x7fff, 0]);
    let pairs: [u64; 2] = [0x7fc0_3f80, 0x8000_ffff];
    assert_eq!(results("neg.bf16x2 {d}, {a};", 32, [(32, &pairs)]), [0x7fff_bf80, 0x7fff]);
    assert_eq!(results("abs.bf16x2 {d}, {a};", 32, [(32, &pairs)]), [0x7fff_3f80, 0x7fff]);
}

#[test]
fn relu_of_a_negative_zero_is_zero() {
    for ty in ["f16", "bf16"] {
        let template = format!("fma.rn.relu.{ty} {{d}}, {{a}}, {{b}}, {{c}};");
        assert_eq!(results(&template, 16, [(16, &[0]), (16, &[0x8000]), (16, &[0x8000])]), [0]);
    }
}

#[test]
fn comparisons_of_halves_flush() {
    let [a, b] = [[0x03ff, 0x8000, 0x03ff], [0x007f, 0x0001, 0x0400]];
    for (relation, want) in [("eq", [1, 1, 0]), ("lt", [0, 0, 1]), ("geu", [1, 1, 0])] {
        let template = format!("setp.{relation}.ftz.f16 {{d}}, {{a}}, {{b}};");
        assert_eq!(results(&template, 1, [(16, &a), (16, &b)]), want, "{relation}");
    }
    assert_eq!(results("setp.lt.f16 {d}, {a}, {b};", 1, [(16, &a), (16, &b)]), [0, 1, 1]);
}

/// Of all NaN, 0x7ff7 and 0xfff7 make a product count as a result of 0; as `c` they are a NaN like any other.
#[test]
fn the_nan_of_out_of_bounds() {
    let one = |ty: &str| if ty == "f16" { 0x3c00 } else { 0x3f80 };
    for ty in ["f16", "bf16"] {
        for relu in ["", ".relu"] {
            let template = format!("fma.rn.oob{relu}.{ty} {{d}}, {{a}}, {{b}}, {{c}};");
            let one = one(ty);
            let a = [0x7ff7, 0xfff7, one, 0x7fff, one, 0x7ff6, one];
            let b = [one, 0x7fff, 0x7ff7, 0xfff7, one, one, 0];
            let c = [one, one, one, 0x7fff, 0x7ff7, one, one];
            let want = [0, 0, 0, 0, 0x7fff, 0x7fff, one];
            assert_eq!(results(&template, 16, [(16, &a), (16, &b), (16, &c)]), want, "{template}");
        }
    }
    let template = "fma.rn.oob.bf16x2 {d}, {a}, {b}, {c};";
    let [a, b, c] = [[0x3f80_7ff7], [0x3f80_3f80], [0x3f80_3f80]];
    assert_eq!(results(template, 32, [(32, &a), (32, &b), (32, &c)]), [0x4000_0000]);
}

#[test]
fn conversions_that_stay_finite() {
    let values =
        [0x477f_efff, 0x477f_f000, 0x7f80_0000, 0xff80_0000, 0x7fc0_0000, 0xc780_0000, 0x3f80_0000];
    let run = |modifiers: &str, ty: &str| {
        results(&format!("cvt.{modifiers}.{ty}.f32 {{d}}, {{a}};"), 16, [(32, &values)])
    };
    assert_eq!(run("rn.satfinite", "f16"), [0x7bff, 0x7bff, 0x7bff, 0xfbff, 0x7fff, 0xfbff, 0x3c00]);
    assert_eq!(run("rz.relu.satfinite", "f16"), [0x7bff, 0x7bff, 0x7bff, 0, 0x7fff, 0, 0x3c00]);
    assert_eq!(run("rn.satfinite", "bf16"), [0x4780, 0x4780, 0x7f7f, 0xff7f, 0x7fff, 0xc780, 0x3f80]);
    let got = results(
        "cvt.rn.satfinite.relu.bf16x2.f32 {d}, {a}, {b};",
        32,
        [(32, &[0x7f7f_ffff]), (32, &[0xff80_0000])],
    );
    assert_eq!(got, [0x7f7f_0000]);
    let tf32 = |modifiers: &str| {
        results(
            &format!("cvt.{modifiers}.tf32.f32 {{d}}, {{a}};"),
            32,
            [(32, &[0x7f7f_f000, 0xff80_0000, 0x8000_0000, 0x7fc0_0000, 0x3f80_1000])],
        )
    };
    assert_eq!(tf32("rna.satfinite"), [0x7f7f_e000, 0xff7f_e000, 0x8000_0000, 0x7fff_e000, 0x3f80_2000]);
    assert_eq!(tf32("rn.relu"), [0x7f80_0000, 0, 0, 0x7fff_e000, 0x3f80_0000]);
    assert_eq!(tf32("rz.relu"), [0x7f7f_e000, 0, 0, 0x7fff_e000, 0x3f80_0000]);
}

#[test]
fn conversions_of_nan_and_to_clamped_f64() {
    let nan = [0x7ff8_0000_0000_0000, 0x7fff_ffff_ffff_ffff];
    assert_eq!(results("cvt.rn.f16.f64 {d}, {a};", 16, [(64, &nan)]), [0x7e00, 0x7fff]);
    assert_eq!(results("cvt.rz.bf16.f64 {d}, {a};", 16, [(64, &nan)]), [0x7fc0, 0x7fff]);
    assert_eq!(
        results("cvt.f32.f32 {d}, {a};", 32, [(32, &[0x7fc0_0000, 0xff80_0001])]),
        [0x7fc0_0000, 0xff80_0001]
    );
    assert_eq!(
        results("cvt.rz.f32.bf16 {d}, {a};", 32, [(16, &[0x7fff, 0x3f80])]),
        [0x7fff_0000, 0x3f80_0000]
    );
    // What a single NaN has in its lower bits alone is no NaN of tf32.
    let got = results("cvt.rna.tf32.f32 {d}, {a};", 32, [(32, &[0x7f80_0001, 0xff90_0001])]);
    assert_eq!(got, [0x7f80_0000, 0xff90_0000]);
    let one = 1f64.to_bits();
    assert_eq!(results("cvt.rn.sat.f64.s32 {d}, {a};", 64, [(32, &[7, 0xffff_ffff, 1])]), [one, 0, one]);
    let singles = [0x4000_0000, 0xbf80_0000, 0x7fc0_0000, 0x3f00_0000];
    assert_eq!(
        results("cvt.sat.f64.f32 {d}, {a};", 64, [(32, &singles)]),
        [one, 0, 0, 0.5f64.to_bits()]
    );
    // To f16 nothing is flushed.
    assert_eq!(results("cvt.rp.ftz.f16.f32 {d}, {a};", 16, [(32, &[1])]), [1]);
}

#[test]
fn absolute_differences_of_every_width() {
    for (ty, bits, want) in
        [("u16", 16, 0xffeb), ("s16", 16, 29), ("u64", 64, 0xffff_ffff_ffff_ffeb), ("s64", 64, 29)]
    {
        let template = format!("sad.{ty} {{d}}, {{a}}, {{b}}, {{c}};");
        let all = u64::MAX >> (64 - bits);
        // 16 and -8, and 5.
        let got = results(&template, bits, [(bits, &[16]), (bits, &[all - 7]), (bits, &[5])]);
        let want = if ty.starts_with('u') { (all - 7 - 16 + 5) & all } else { want };
        assert_eq!(got, [want], "{ty}");
    }
}

#[test]
fn logic_of_three_gives_a_predicate_and_may_write_its_own_guard() {
    let words = run_clean(
        "mov.u32 %r1, 0xf0; mov.u32 %r2, 0x3c; mov.u32 %r3, 0;
setp.eq.u32 %p1, %tid, 0; setp.lt.u32 %p2, %tid, 2;
mov.u32 %r5, 77; setp.ne.u32 %p3, 0, 0;
@%p2 lop3.or.b32 %r5|%p2, %r1, %r2, %r3, 0xc0, %p1;
lop3.and.b32 _|%p3, %r1, %r3, %r3, 0xc0, !%p1;
selp.b32 %r6, 256, 0, %p2; or.b32 %r5, %r5, %r6; selp.b32 %r6, 512, 0, %p3; or.b32 %r5, %r5, %r6;
st.global.b32 [%mine], %r5;",
        3,
    );
    // The third thread is guarded: neither the register nor the predicate changes.
    assert_eq!(words[..3], [0x30 | 256, 0x30 | 256, 77]);
}

#[test]
fn comparisons_of_pairs_may_write_their_own_guard() {
    // 1 and 2 are compared with 2 and 2.
    let words = run_clean(
        "mov.u32 %r1, 0x40003c00; mov.u32 %r2, 0x40004000;
setp.lt.u32 %p1, %tid, 1; setp.lt.u32 %p2, %tid, 1; setp.lt.u32 %p3, %tid, 9;
mov.pred %p4, %p1; mov.pred %p5, %p2;
@%p4 setp.lt.and.f16x2 %p4|%p6, %r1, %r2, %p3;
@%p5 setp.lt.or.f16x2 %p7|%p5, %r1, %r2, !%p3;
selp.b32 %r3, 1, 0, %p4; selp.b32 %r4, 2, 0, %p5; or.b32 %r3, %r3, %r4;
@!%p1 bra END;
selp.b32 %r4, 4, 0, %p6; or.b32 %r3, %r3, %r4; selp.b32 %r4, 8, 0, %p7; or.b32 %r3, %r3, %r4;
END: st.global.b32 [%mine], %r3;",
        2,
    );
    assert_eq!(words[..2], [1 | 8, 0]);
    let template = "set.lt.xor.u32.f16x2 {d}, {a}, {b}, {c};";
    let got = results(template, 32, [(32, &[0x4000_3c00; 2]), (32, &[0x4000_4000; 2]), (1, &[1, 0])]);
    assert_eq!(got, [0xffff_0000, 0x0000_ffff]);
}

#[test]
fn matrices_and_tensor_maps_by_generic_addresses() {
    let words = run_clean(
        ".shared .align 16 .b8 tile[128];
mov.u32 %r1, tile; mad.lo.u32 %r2, %tid, 4, %r1; st.shared.b32 [%r2], %tid; bar.warp.sync -1;
and.b32 %r3, %tid, 7; mad.lo.u32 %r3, %r3, 16, %r1; cvt.u64.u32 %d1, %r3; cvta.shared.u64 %d1, %d1;
ldmatrix.sync.aligned.m8n8.x1.b16 {%r4}, [%d1];
st.global.b32 [%mine], %r4;
add.u32 %r4, %r4, 5; bar.warp.sync -1;
stmatrix.sync.aligned.m8n8.x1.b16 [%d1], {%r4}; bar.warp.sync -1;
ld.shared.b32 %r5, [%r2]; st.global.b32 [%mine+128], %r5;
fence.proxy.alias; membar.proxy.alias; mov.u64 %d2, %pm3_64;",
        32,
    );
    let expected: Vec<u32> = (0..32).chain(5..37).collect();
    assert_eq!(words[..64], expected);
}
