//! Scratch.
use ptx_emulator::*;
fn bf(x: f32) -> u16 { half::bf16::from_f32(x).to_bits() }
#[test]
fn attention() {
    let path = std::env::var("PTX").unwrap_or("/tmp/ptx/forward_bf16_d128_sm80.ptx".into());
    let text = std::fs::read_to_string(&path).unwrap();
    let m = Module::parse(&text).unwrap();
    let k = m.kernels().next().unwrap();
    println!("{} params {} code {}", k.name(), k.parameter_bytes(), k.instructions());
    let (b, s, h, d) = (1usize, std::env::var("S").map(|x| x.parse().unwrap()).unwrap_or(256usize), 2usize, std::env::var("D").map(|x| x.parse().unwrap()).unwrap_or(128usize));
    let n = b * s * h * d;
    let mut x = 1u64;
    let mut rnd = || { let mut t = 0.0; for _ in 0..4 { x ^= x << 13; x ^= x >> 7; x ^= x << 17; t += (x >> 40) as f32 / (1u64 << 24) as f32 - 0.5; } t * 1.7 };
    let data: Vec<Vec<f32>> = (0..3).map(|_| (0..n).map(|_| half::bf16::from_f32(rnd()).to_f32()).collect()).collect();
    for (name, checks, schedule) in [("all latest", Checks::all(), Schedule::Latest), ("none", Checks::none(), Schedule::Eager), ("all eager", Checks::all(), Schedule::Eager), ("random", Checks::all(), Schedule::Random(7))] {
        for rep in 0..4 {
        let mem = Memory::new();
        let bufs: Vec<Address> = (0..4).map(|_| mem.allocate(n * 2)).collect();
        for i in 0..3 { let v: Vec<u8> = data[i].iter().flat_map(|&f| bf(f).to_le_bytes()).collect(); mem.write(bufs[i], &v).unwrap(); }
        let lse = mem.allocate(b * h * s * 4);
        let mut p: Vec<u8> = vec![];
        for a in &bufs { p.extend(a.to_le_bytes()); for st in [s * h * d, h * d, d] { p.extend((st as i64).to_le_bytes()); } }
        p.extend(lse.to_le_bytes());
        if k.parameter_bytes() > 192 { for v in [(h * s) as u64, s as u64, 0, 0] { p.extend(v.to_le_bytes()); } }
        let scale = 1.0 / (d as f32).sqrt();
        for v in [b as u32, h as u32, 1, s as u32, s as u32, d as u32, d as u32, 0, 1 << 30, 1 << 30, scale.to_bits(), 0, 2, 0] { p.extend(v.to_le_bytes()); }
        let grid = [((s + 127) / 128 * h * b) as u32, 1, 1];
        let shared = ((128 + 4 * 32 * 2) * d * 2) as u32;
        let l = Launch { grid, block: k.max_threads().unwrap(), shared_bytes: std::env::var("SH").map(|x| x.parse().unwrap()).unwrap_or(shared), params: &p };
        let t = std::time::Instant::now();
        let r = launch(k, &mem, &l, &Options { checks, schedule, ..Options::default() }).unwrap();
        let t = t.elapsed();
        if rep == 3 {
        println!("{name}: {:?} {:?} findings {} {:.1} M/s", t, r.statistics, r.findings.len(), r.statistics.warp_instructions as f64 / t.as_secs_f64() / 1e6);
        for f in r.findings.iter().take(5) { println!("{f}"); } }
        if rep == 0 {
            let mut o = vec![0u8; n * 2]; mem.read(bufs[3], &mut o).unwrap();
            let mut worst = 0f64;
            for hi in 0..h { for qi in (0..s).step_by(7) {
                let at = |m: usize, r: usize, c: usize| data[m][(r * h + hi) * d + c] as f64;
                let sc: Vec<f64> = (0..s).map(|j| (0..d).map(|c| at(0, qi, c) * at(1, j, c)).sum::<f64>() * scale as f64).collect();
                let mx = sc.iter().cloned().fold(f64::MIN, f64::max); let z: f64 = sc.iter().map(|x| (x - mx).exp()).sum();
                for c in 0..d { let e: f64 = (0..s).map(|j| (sc[j] - mx).exp() / z * at(2, j, c)).sum();
                    let i = ((qi * h + hi) * d + c) * 2; let got = half::bf16::from_bits(u16::from_le_bytes([o[i], o[i + 1]])).to_f64();
                    worst = worst.max(if got.is_nan() { 9e9 } else { (got - e).abs() }); }
            } }
            println!("worst {worst:e}");
        }}
    }
}
