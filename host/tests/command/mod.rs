//! Runs of `fattn`, and the files that they read and write.
#![allow(dead_code)] // each test file uses its own part

use safetensors::Dtype;
use safetensors::tensor::TensorView;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// What names of files start with: of this process, and of the file of tests that this is a part of.
fn prefix() -> String {
    format!("fattn-{}-{}", std::process::id(), module_path!().replace("::", "-"))
}

/// A file of its own for each test, removed when dropped.
pub struct File(pub PathBuf);

impl File {
    pub fn new(name: &str) -> Self {
        File(std::env::temp_dir().join(format!("{}-{name}.safetensors", prefix())))
    }

    /// Tensors of zeros.
    pub fn with(name: &str, tensors: &[(&str, Dtype, &[usize])]) -> Self {
        let zeros = |dtype: Dtype, shape: &[usize]| {
            vec![
                0;
                shape.iter().map(|&size| size as u128).product::<u128>() as usize * dtype.bitsize() / 8
            ]
        };
        let tensors: Vec<_> = tensors
            .iter()
            .map(|&(name, dtype, shape)| (name, dtype, shape, zeros(dtype, shape)))
            .collect();
        File::with_bytes(name, &tensors)
    }

    /// Tensors of these bytes.
    pub fn with_bytes(name: &str, tensors: &[(&str, Dtype, &[usize], Vec<u8>)]) -> Self {
        let file = File::new(name);
        let views = tensors.iter().map(|(name, dtype, shape, bytes)| {
            (*name, TensorView::new(*dtype, shape.to_vec(), bytes).unwrap())
        });
        std::fs::write(&file.0, safetensors::serialize(views, None).unwrap()).unwrap();
        file
    }

    /// q, k and v of zeros, f32 `[1, 3, 2, 8]`.
    pub fn qkv(name: &str) -> Self {
        File::with(name, &["q", "k", "v"].map(|tensor| (tensor, Dtype::F32, [1, 3, 2, 8].as_slice())))
    }

    pub fn text(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// A directory of its own for each test, removed with all that is in it when dropped.
pub struct Directory(PathBuf);

impl Directory {
    pub fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("{}-{name}", prefix()));
        std::fs::create_dir_all(&path).unwrap();
        Directory(path)
    }

    /// The path of a file in it.
    pub fn file(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }

    /// The path of a file in it, with these bytes.
    pub fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> String {
        let path = self.file(name);
        std::fs::write(&path, bytes).unwrap();
        path
    }

    /// The names of all files in it, sorted.
    pub fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.0).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

impl AsRef<Path> for Directory {
    fn as_ref(&self) -> &Path {
        &self.0
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub fn fattn(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_fattn")).args(arguments).output().unwrap()
}

/// What is wrong with the arguments, said before anything runs.
#[track_caller]
pub fn wrong(arguments: &[&str]) -> String {
    let answer = fattn(arguments);
    assert_eq!(answer.status.code(), Some(2), "{arguments:?}");
    assert!(answer.stdout.is_empty(), "{arguments:?}");
    String::from_utf8(answer.stderr).unwrap()
}

/// What `fattn run` says of this input before it opens a device.
#[track_caller]
pub fn refused(name: &str, tensors: &[(&str, Dtype, &[usize])], options: &[&str]) -> String {
    let (input, output) = (File::with(name, tensors), File::new(&format!("{name}-out")));
    let text = wrong(&[&["run", "--input", input.text(), "--output", output.text()], options].concat());
    assert!(!output.0.exists());
    text
}

/// What `fattn sanitize` says, which ends with this exit code.
#[track_caller]
pub fn sanitized(arguments: &[&str], code: i32) -> String {
    let answer = fattn(&[&["sanitize"], arguments].concat());
    let text = String::from_utf8(answer.stdout).unwrap() + &String::from_utf8(answer.stderr).unwrap();
    assert_eq!(answer.status.code(), Some(code), "{text}");
    text
}
