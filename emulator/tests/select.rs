//! Comparisons, selections, predicate logic and moves against plain Rust.

#![allow(clippy::needless_range_loop, reason = "a row or lane number indexes several columns at once")]

mod common;
use common::{Random, evaluate, run_clean};

const COUNT: usize = 1024;

/// Pairs that are often equal.
fn pairs(bits: u32) -> [(u32, Vec<u64>); 2] {
    let mask = if bits == 64 { !0 } else { (1u64 << bits) - 1 };
    let mut random = Random(u64::from(bits));
    let first: Vec<u64> = (0..COUNT).map(|_| random.next() & mask).collect();
    let second = first
        .iter()
        .map(|&x| if random.next().is_multiple_of(3) { x } else { random.next() & mask })
        .collect();
    [(bits, first), (bits, second)]
}

fn check(opcode: &str, bits: u32, holds: impl Fn(u64, u64) -> bool) {
    let sources = pairs(bits);
    let got = evaluate(&format!("{opcode} {{d}}, {{a}}, {{b}};"), 1, &sources);
    for row in 0..COUNT {
        let (a, b) = (sources[0].1[row], sources[1].1[row]);
        assert_eq!(got[row] == 1, holds(a, b), "{opcode} {a:#x} {b:#x}");
    }
}

#[test]
fn integers_compare_by_their_signedness() {
    for w in [16u32, 32, 64] {
        let signed = move |x: u64| (x << (64 - w)) as i64 >> (64 - w);
        check(&format!("setp.eq.b{w}"), w, |a, b| a == b);
        check(&format!("setp.ne.s{w}"), w, |a, b| a != b);
        check(&format!("setp.lt.u{w}"), w, |a, b| a < b);
        check(&format!("setp.lo.u{w}"), w, |a, b| a < b);
        check(&format!("setp.ls.u{w}"), w, |a, b| a <= b);
        check(&format!("setp.hi.u{w}"), w, |a, b| a > b);
        check(&format!("setp.hs.u{w}"), w, |a, b| a >= b);
        check(&format!("setp.lt.s{w}"), w, move |a, b| signed(a) < signed(b));
        check(&format!("setp.le.s{w}"), w, move |a, b| signed(a) <= signed(b));
        check(&format!("setp.gt.s{w}"), w, move |a, b| signed(a) > signed(b));
        check(&format!("setp.ge.s{w}"), w, move |a, b| signed(a) >= signed(b));
    }
}

#[test]
fn floats_compare_ordered_and_unordered() {
    let nan = |a: u64, b: u64| f32::from_bits(a as u32).is_nan() || f32::from_bits(b as u32).is_nan();
    let sources = {
        let values = [0f32, -0.0, 1.0, -1.0, 1e-40, f32::INFINITY, f32::NAN, 2.0];
        let mut random = Random(3);
        let mut column = || -> Vec<u64> {
            (0..COUNT).map(|_| u64::from(values[random.next() as usize % 8].to_bits())).collect()
        };
        [(32, column()), (32, column())]
    };
    type Relation = fn(f32, f32) -> bool;
    let relations: [(&str, Relation); 6] = [
        ("eq", |a, b| a == b),
        ("ne", |a, b| a.partial_cmp(&b).is_some_and(|order| order.is_ne())),
        ("lt", |a, b| a < b),
        ("le", |a, b| a <= b),
        ("gt", |a, b| a > b),
        ("ge", |a, b| a >= b),
    ];
    let run = |opcode: &str| evaluate(&format!("{opcode} {{d}}, {{a}}, {{b}};"), 1, &sources);
    for (name, relation) in relations {
        let (ordered, unordered) = (run(&format!("setp.{name}.f32")), run(&format!("setp.{name}u.f32")));
        for row in 0..COUNT {
            let (a, b) = (sources[0].1[row], sources[1].1[row]);
            let holds = relation(f32::from_bits(a as u32), f32::from_bits(b as u32));
            assert_eq!(ordered[row] == 1, holds, "{name}");
            assert_eq!(unordered[row] == 1, holds || nan(a, b), "{name}u");
        }
    }
    let (number, not) = (run("setp.num.f32"), run("setp.nan.f32"));
    let flushed = run("setp.eq.ftz.f32");
    for row in 0..COUNT {
        let (a, b) = (sources[0].1[row], sources[1].1[row]);
        assert_eq!((number[row], not[row]), (u64::from(!nan(a, b)), u64::from(nan(a, b))));
        let flush = |x: u64| {
            if f32::from_bits(x as u32).is_subnormal() { 0.0 } else { f32::from_bits(x as u32) }
        };
        assert_eq!(flushed[row] == 1, flush(a) == flush(b));
    }
}

#[test]
fn results_combine_with_a_predicate_and_have_a_complement() {
    let [a, b] = pairs(32);
    let c = (1, (0..COUNT as u64).map(|row| row / 3 % 2).collect::<Vec<_>>());
    let sources = [a, b, c];
    for (name, combine) in
        [("and", (|x, y| x & y) as fn(bool, bool) -> bool), ("or", |x, y| x | y), ("xor", |x, y| x ^ y)]
    {
        let direct = evaluate(&format!("setp.lt.{name}.u32 {{d}}, {{a}}, {{b}}, {{c}};"), 1, &sources);
        let negated = evaluate(&format!("setp.lt.{name}.u32 {{d}}, {{a}}, {{b}}, !{{c}};"), 1, &sources);
        let complement =
            evaluate(&format!("setp.lt.{name}.u32 %p8|{{d}}, {{a}}, {{b}}, {{c}};"), 1, &sources);
        for row in 0..COUNT {
            let (less, c) = (sources[0].1[row] < sources[1].1[row], sources[2].1[row] != 0);
            assert_eq!(direct[row] == 1, combine(less, c), "{name}");
            assert_eq!(negated[row] == 1, combine(less, !c), "{name} !");
            assert_eq!(complement[row] == 1, combine(!less, c), "{name} |");
        }
    }
}

#[test]
fn selections_and_predicate_logic() {
    for bits in [16, 32, 64] {
        let [a, b] = pairs(bits);
        let c = (1, (0..COUNT as u64).map(|row| row % 2).collect::<Vec<_>>());
        let sources = [a, b, c];
        let got = evaluate(&format!("selp.b{bits} {{d}}, {{a}}, {{b}}, {{c}};"), bits, &sources);
        for row in 0..COUNT {
            assert_eq!(got[row], sources[if row % 2 == 1 { 0 } else { 1 }].1[row]);
        }
    }
    let column = |step: u64| (1, (0..64).map(|row| row / step % 2).collect::<Vec<u64>>());
    let sources = [column(1), column(2)];
    for (name, f) in
        [("and", (|a, b| a & b) as fn(u64, u64) -> u64), ("or", |a, b| a | b), ("xor", |a, b| a ^ b)]
    {
        let got = evaluate(&format!("{name}.pred {{d}}, {{a}}, {{b}};"), 1, &sources);
        (0..64).for_each(|row| assert_eq!(got[row], f(sources[0].1[row], sources[1].1[row])));
    }
    for (name, f) in
        [("and", (|a, b| a & b) as fn(u64, u64) -> u64), ("or", |a, b| a | b), ("xor", |a, b| a ^ b)]
    {
        for (x, y) in [("", "!"), ("!", ""), ("!", "!")] {
            let got = evaluate(&format!("{name}.pred {{d}}, {x}{{a}}, {y}{{b}};"), 1, &sources);
            let value = |column: usize, row: usize, sign: &str| {
                sources[column].1[row] ^ u64::from(!sign.is_empty())
            };
            let expected = |row| f(value(0, row, x), value(1, row, y));
            (0..64).for_each(|row| assert_eq!(got[row], expected(row), "{name} {x}a {y}b"));
        }
    }
    let got = evaluate("not.pred {d}, {a};", 1, &sources);
    (0..64).for_each(|row| assert_eq!(got[row], 1 - sources[0].1[row]));
    assert!(evaluate("mov.pred {d}, -1;", 1, &sources).iter().all(|&value| value == 1));
    assert!(evaluate("mov.pred {d}, 0;", 1, &sources).iter().all(|&value| value == 0));
}

#[test]
fn vectors_pack_and_unpack() {
    let [a, b] = pairs(32);
    let sources = [a, b];
    let got = evaluate("mov.b64 {d}, {{a}, {b}};", 64, &sources);
    let high = evaluate("mov.b64 %d1, {{a}, {b}}; mov.b64 {_, {d}}, %d1;", 32, &sources);
    let swapped = evaluate("mov.b32 {%h1, %h2}, {a}; mov.b32 {d}, {%h2, %h1};", 32, &sources);
    let bytes = evaluate(
        "{.reg .b8 %x<4>; mov.b32 {%x0, %x1, %x2, %x3}, {a}; mov.b32 {d}, {%x3, %x2, %x1, %x0};}",
        32,
        &sources,
    );
    for row in 0..COUNT {
        let (a, b) = (sources[0].1[row], sources[1].1[row]);
        assert_eq!(got[row], b << 32 | a);
        assert_eq!(high[row], b);
        assert_eq!(swapped[row] as u32, (a as u32).rotate_left(16));
        assert_eq!(bytes[row] as u32, (a as u32).swap_bytes());
    }
}

#[test]
fn special_registers_say_who_and_where() {
    let words = run_clean(
        "mov.u32 %r1, %laneid; mov.u32 %r2, %warpid; mov.u32 %r3, %ntid.x; mov.u32 %r4, %lanemask_lt;
         mov.u32 %r5, %nctaid.x; mov.u32 %r6, %dynamic_smem_size;
         mad.lo.s32 %r1, %r2, 100, %r1; mad.lo.s32 %r1, %r3, 10000, %r1;
         popc.b32 %r4, %r4; mad.lo.s32 %r1, %r4, 10000000, %r1; add.s32 %r1, %r1, %r5; sub.s32 %r1, %r1, 1;
         add.s32 %r1, %r1, %r6; sub.s32 %r1, %r1, 1024;
         st.global.b32 [%mine], %r1;",
        96,
    );
    for thread in 0..96u32 {
        let (lane, warp) = (thread % 32, thread / 32);
        assert_eq!(words[thread as usize], lane + warp * 100 + 96 * 10000 + lane * 10_000_000);
    }
}

#[test]
fn special_registers_that_nobody_has_set() {
    let words = run_clean(
        "mov.b32 %r1, %envreg0; mov.b32 %r2, %envreg31; mov.u32 %r3, %pm7; mov.u64 %d1, %current_graph_exec;
         mov.u32 %r4, %aggr_smem_size; mov.u32 %r5, %total_smem_size; sub.s32 %r4, %r4, %r5;
         st.global.v4.b32 [%data], {%r1, %r2, %r3, %r4}; st.global.b64 [%data+16], %d1;",
        1,
    );
    assert_eq!(words[..6], [0; 6]);
    for name in ["%envreg32", "%pm8", "%pm", "%envreg"] {
        let text = common::kernel(&format!("mov.b32 %r1, {name};"));
        assert!(ptx_emulator::Module::parse(&text).is_err(), "{name}");
    }
}

#[test]
fn constants_that_the_text_has_names_for() {
    let words = run_clean(
        "mov.u32 %r1, WARP_SZ; mul.lo.s32 %r2, %tid, WARP_SZ; mov.f32 %r3, 1.5e-3; mov.f64 %d1, 2E+2;
         mov.u64 %d2, %gridid; mov.u32 %r4, %gridid; mov.u32 %r5, %globaltimer_hi; mov.u32 %r6, %globaltimer_lo;
         sub.s32 %r6, %r6, %r6; cvt.u32.u64 %r7, %d2; add.s32 %r7, %r7, %r4;
         add.s32 %r7, %r7, %r5; setp.ne.u32 %p1, %tid, 3; @%p1 bra END;
         st.global.v4.b32 [%data], {%r1, %r2, %r3, %r6}; st.global.b64 [%data+16], %d1;
         st.global.b32 [%data+24], %r7; END:",
        32,
    );
    assert_eq!(words[..4], [32, 96, 1.5e-3f32.to_bits(), 0]);
    assert_eq!(u64::from(words[5]) << 32 | u64::from(words[4]), 200f64.to_bits());
    assert_eq!(words[6], 0);
}
