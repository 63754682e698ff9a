#[test]
fn parse_all() {
    for entry in std::fs::read_dir("/tmp/ptx").unwrap() {
        let path = entry.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        let t = std::time::Instant::now();
        match ptx_emulator::Module::parse(&text) {
            Ok(m) => for k in m.kernels() { println!("{path:?} {} {} {:?} {:?} {:?}", k.name(), k.instructions(), k.unsupported().first(), k.max_threads(), t.elapsed()); },
            Err(e) => println!("{path:?} ERR {e}"),
        }
    }
}
