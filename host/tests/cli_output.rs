//! Files that `fattn` writes: what is refused before anything is computed, and what is left when it fails.
#![cfg(unix)] // links, permissions and limits as Unix has them

mod command;

use command::{Directory, File, fattn, wrong};
use safetensors::{Dtype, SafeTensors};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::{Command, Output};

const BEFORE: &[u8] = b"what was there before";

fn run(input: &str, output: &str) -> Output {
    fattn(&["run", "--device", "emulated", "--input", input, "--output", output])
}

/// What `fattn run` says of an output, for a device that is not there: it would be the next thing to be refused.
#[track_caller]
fn refused(input: &str, output: &str) -> String {
    wrong(&["run", "--device", "cuda:9999", "--input", input, "--output", output])
}

#[test]
fn an_output_that_cannot_be_written_is_refused_before_anything_is_computed() {
    let (input, place) = (File::qkv("unwritable"), Directory::new("unwritable"));
    let directory = place.file("directory");
    fs::create_dir(&directory).unwrap();
    assert_eq!(
        refused(input.text(), &directory),
        format!("fattn: --output {directory}: expected a file or a new name, got a directory\n")
    );
    let link = place.file("link");
    symlink(place.file("nothing"), &link).unwrap();
    assert_eq!(
        refused(input.text(), &link),
        format!("fattn: --output {link}: expected a file or a new name, got a link to nothing\n")
    );
    let nowhere = place.file("nowhere/out");
    assert_eq!(
        refused(input.text(), &nowhere),
        format!(
            "fattn: --output {nowhere}: cannot be written: No such file or directory (os error 2)\n"
        )
    );
    let in_a_file = format!("{}/out", input.text());
    assert_eq!(
        refused(input.text(), &in_a_file),
        format!("fattn: --output {in_a_file}: cannot be written: Not a directory (os error 20)\n")
    );
    // One that can be written is not touched before there is something to write.
    let output = place.file("output");
    fs::write(&output, BEFORE).unwrap();
    assert!(refused(input.text(), &output).starts_with("fattn: device cuda:9999: "));
    assert!(refused(input.text(), &place.file("new")).starts_with("fattn: device cuda:9999: "));
    assert_eq!(fs::read(&output).unwrap(), BEFORE);
    assert_eq!(place.names(), ["directory", "link", "output"]);
}

#[test]
fn an_output_that_is_the_input_is_refused_by_whatever_path() {
    let (input, place) = (File::qkv("same"), Directory::new("same"));
    let [symbolic, hard] = [place.file("symbolic"), place.file("hard")];
    symlink(&input.0, &symbolic).unwrap();
    fs::hard_link(&input.0, &hard).unwrap();
    let roundabout = format!("{}/../{}", place.file(""), input.0.file_name().unwrap().to_str().unwrap());
    let bytes = fs::read(&input.0).unwrap();
    for output in [input.text(), &symbolic, &hard, &roundabout] {
        assert_eq!(
            refused(input.text(), output),
            format!(
                "fattn: --output {output}: expected another file than that of --input, got the same\n"
            )
        );
    }
    assert!(refused(&symbolic, &hard).ends_with("than that of --input, got the same\n"));
    let kernels = place.file("kernels.ptx");
    fs::write(&kernels, ".entry k() { ret; }").unwrap();
    let options = ["--input", input.text(), "--output", &kernels, "--kernels", &kernels];
    assert_eq!(
        wrong(&[&["run"], &options[..]].concat()),
        format!(
            "fattn: --output {kernels}: expected another file than that of --kernels, got the same\n"
        )
    );
    assert_eq!(fs::read(&input.0).unwrap(), bytes);
}

/// Writing fails at the first KiB of a file, as on a full disk.
fn with_little_room(arguments: &[&str]) -> Output {
    let script = "trap '' XFSZ; ulimit -f 1; exec \"$@\"";
    let mut command = Command::new("sh");
    command.args(["-c", script, "sh", env!("CARGO_BIN_EXE_fattn")]).args(arguments);
    command.output().unwrap()
}

#[test]
fn an_output_that_does_not_fit_the_disk_leaves_what_was_there() {
    let shape: &[usize] = &[1, 64, 2, 8];
    let input = File::with("full", &["q", "k", "v"].map(|name| (name, Dtype::F32, shape)));
    let place = Directory::new("full");
    let [old, new] = [place.file("old"), place.file("new")];
    fs::write(&old, BEFORE).unwrap();
    for output in [&old, &new] {
        let paths = ["--input", input.text(), "--output", output];
        let answer = with_little_room(&[&["run", "--device", "emulated"], &paths[..]].concat());
        assert_eq!(
            String::from_utf8(answer.stderr).unwrap(),
            format!("fattn: --output {output}: cannot be written: File too large (os error 27)\n")
        );
        assert_eq!((answer.status.code(), answer.stdout.is_empty()), (Some(2), true));
    }
    assert_eq!((fs::read(&old).unwrap(), place.names()), (BEFORE.to_vec(), vec!["old".to_owned()]));
    // The same for the other commands that write files.
    let options = ["--device", "emulated", "--seqlen", "5,6,7", "--head-dim", "8", "--json", &old];
    let answer = with_little_room(&[&["equivalence"], &options[..]].concat());
    assert!(
        String::from_utf8(answer.stderr).unwrap().starts_with(&format!("fattn: --json {old}: cannot"))
    );
    assert_eq!((fs::read(&old).unwrap(), place.names()), (BEFORE.to_vec(), vec!["old".to_owned()]));
    let out = format!("buf:u32:1024:zeros,out={old}");
    let kernel = place.file("k.ptx");
    fs::write(&kernel, PTX).unwrap();
    let options = ["--ptx", &kernel, "--block", "1", "--arg", &out, "--arg", "u64:0"];
    let answer = with_little_room(&[&["sanitize"], &options[..]].concat());
    assert!(String::from_utf8(answer.stderr).unwrap().contains(": cannot be written: File too large"));
    assert_eq!(fs::read(&old).unwrap(), BEFORE);
    assert_eq!(place.names(), ["k.ptx", "old"]);
}

#[test]
fn an_output_takes_the_place_of_what_was_there_with_its_permissions() {
    let (input, place) = (File::qkv("replaced"), Directory::new("replaced"));
    let [old, new, link, usual] = ["old", "new", "link", "usual"].map(|name| place.file(name));
    fs::write(&old, BEFORE).unwrap();
    fs::write(&usual, BEFORE).unwrap();
    fs::set_permissions(&old, PermissionsExt::from_mode(0o640)).unwrap();
    symlink(&old, &link).unwrap();
    for output in [&new, &link] {
        let answer = run(input.text(), output);
        assert!(answer.status.success(), "{}", String::from_utf8_lossy(&answer.stderr));
    }
    let mode = |path: &str| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    assert_eq!((mode(&old), mode(&new)), (0o640, mode(&usual)));
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    for output in [&old, &new] {
        assert!(SafeTensors::deserialize(&fs::read(output).unwrap()).unwrap().tensor("lse").is_ok());
    }
    assert_eq!(place.names(), ["link", "new", "old", "usual"]);
}

#[test]
#[cfg(target_os = "linux")]
fn devices_are_written_to_as_they_are() {
    use std::os::unix::fs::FileTypeExt;

    let input = File::qkv("devices");
    assert!(run(input.text(), "/dev/null").status.success());
    let answer = run(input.text(), "/dev/full");
    assert_eq!(
        String::from_utf8(answer.stderr).unwrap(),
        "fattn: --output /dev/full: cannot be written: No space left on device (os error 28)\n"
    );
    for device in ["/dev/null", "/dev/full"] {
        assert!(fs::metadata(device).unwrap().file_type().is_char_device());
    }
}

#[test]
fn numbers_and_picture_of_equivalence_are_two_files() {
    let place = Directory::new("two");
    let [one, again] = [place.file("one"), place.file("./one")];
    assert_eq!(
        wrong(&["equivalence", "--json", &one, "--svg", &again]),
        format!("fattn: --svg {again}: expected another file than that of --json, got the same\n")
    );
    let nowhere = place.file("nowhere/svg");
    assert_eq!(
        wrong(&["equivalence", "--json", &one, "--svg", &nowhere]),
        format!("fattn: --svg {nowhere}: cannot be written: No such file or directory (os error 2)\n")
    );
    assert!(place.names().is_empty());
}

/// A kernel with two parameters that does nothing.
const PTX: &str = ".version 8.0\n.target sm_80\n.address_size 64\n\
                   .visible .entry k(.param .u64 a, .param .u64 b) {\nret; }\n";

#[test]
fn buffers_of_sanitize_are_written_to_files_of_their_own() {
    let place = Directory::new("buffers");
    let [ptx, raw, out] = ["k.ptx", "raw", "out"].map(|name| place.file(name));
    fs::write(&ptx, PTX).unwrap();
    fs::write(&raw, [1, 2, 3, 4]).unwrap();
    let sanitize = |a: &str, b: &str| {
        let arguments = ["sanitize", "--ptx", &ptx, "--block", "1", "--arg", a, "--arg", b];
        wrong(&arguments)
    };
    let same = |of: &str, path: &str, other: &str| {
        format!("fattn: out= of {of} {path}: expected another file than that of {other}, got the same\n")
    };
    let zeros = |path: &str| format!("buf:u8:4:zeros,out={path}");
    let from_raw = format!("file:{raw}");
    assert_eq!(sanitize(&zeros(&ptx), "u64:0"), same("a", &ptx, "--ptx"));
    assert_eq!(sanitize(&from_raw, &zeros(&raw)), same("b", &raw, "file: of a"));
    assert_eq!(sanitize(&format!("{from_raw},out={raw}"), "u64:0"), same("a", &raw, "file: of a"));
    assert_eq!(sanitize(&format!("buf:u8:4:file:{raw}"), &zeros(&raw)), same("b", &raw, "file: of a"));
    assert_eq!(sanitize(&zeros(&out), &zeros(&out)), same("b", &out, "out= of a"));
    let nowhere = place.file("nowhere/out");
    assert_eq!(
        sanitize(&zeros(&nowhere), "u64:0"),
        format!(
            "fattn: out= of a {nowhere}: cannot be written: No such file or directory (os error 2)\n"
        )
    );
    assert_eq!(fs::read(&raw).unwrap(), [1, 2, 3, 4]);
    assert_eq!(place.names(), ["k.ptx", "raw"]);
    let arguments =
        ["sanitize", "--ptx", &ptx, "--block", "1", "--arg", &from_raw, "--arg", &zeros(&out)];
    assert!(fattn(&arguments).status.success());
    assert_eq!(fs::read(&out).unwrap(), [0; 4]);
}
