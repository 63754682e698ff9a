//! Files that a command writes: complete or not at all, and never over what the command reads.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use tempfile::{Builder, NamedTempFile};

/// Short for a result of this module.
pub type Result<T, E = OutputError> = std::result::Result<T, E>;

/// Why a file cannot be written. `option` is the option that names it.
#[derive(Debug, thiserror::Error)]
pub enum OutputError {
    /// It is a file that the command reads or writes as well, by whatever path.
    #[error("{option} {}: expected another file than that of {other}, got the same", .path.display())]
    Same {
        /// The option.
        option: String,
        /// The path as it was given.
        path: PathBuf,
        /// The option that names the other file.
        other: String,
    },
    /// There is something that is no file.
    #[error("{option} {}: expected a file or a new name, got {got}", .path.display())]
    NoFile {
        /// The option.
        option: String,
        /// The path as it was given.
        path: PathBuf,
        /// What is there.
        got: &'static str,
    },
    /// The system refuses.
    #[error("{option} {}: cannot be written: {error}", .path.display())]
    Refused {
        /// The option.
        option: String,
        /// The path as it was given.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
}

/// Where the bytes go.
enum Place {
    /// To a regular file, by a path without links. They are written beside it and take its place when they
    /// are complete, so that a full disk leaves the file as it was.
    File(PathBuf),
    /// To a device or a pipe, as they come.
    Stream(File),
}

/// A file to be written.
pub struct OutputFile {
    option: String,
    path: PathBuf,
    place: Place,
}

impl OutputFile {
    /// The file at `path`, which `option` names. Whatever can be refused is refused here, before anything is
    /// computed. Nothing is written yet.
    ///
    /// # Errors
    /// [`OutputError`]: it is one of `inputs` (option and path), or nothing can be written there.
    pub fn new(option: &str, path: &Path, inputs: &[(&str, &Path)]) -> Result<Self> {
        let refused = |error| refused(option, path, error);
        let no_file =
            |got| OutputError::NoFile { option: option.to_owned(), path: path.to_owned(), got };
        let place = match fs::metadata(path) {
            Ok(there) if there.is_dir() => return Err(no_file("a directory")),
            Ok(there) if there.is_file() => {
                OpenOptions::new().append(true).open(path).map_err(refused)?;
                Place::File(path.canonicalize().map_err(refused)?)
            }
            Ok(_) => Place::Stream(OpenOptions::new().write(true).open(path).map_err(refused)?),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                if path.is_symlink() {
                    return Err(no_file("a link to nothing"));
                }
                let name = path.file_name().ok_or_else(|| refused(error))?;
                Place::File(directory(path).canonicalize().map_err(refused)?.join(name))
            }
            Err(error) => return Err(refused(error)),
        };
        if let Place::File(target) = &place {
            if let Some((other, _)) = inputs.iter().find(|(_, input)| is_same(input, target)) {
                return Err(same(option, path, other));
            }
            beside(target).map_err(refused)?; // and removed again
        }
        Ok(OutputFile { option: option.to_owned(), path: path.to_owned(), place })
    }

    /// Writes all of the file.
    ///
    /// # Errors
    /// [`OutputError::Refused`]; what was there before is then unchanged.
    pub fn write(&mut self, bytes: &[u8]) -> Result<()> {
        let written = match &mut self.place {
            Place::File(target) => replace(target, bytes),
            Place::Stream(stream) => stream.write_all(bytes),
        };
        written.map_err(|error| refused(&self.option, &self.path, error))
    }

    /// As it was given.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Refuses files of which two are the same.
///
/// # Errors
/// [`OutputError::Same`] names the second one.
pub fn all_different(files: &[&OutputFile]) -> Result<()> {
    for (index, file) in files.iter().enumerate() {
        let Place::File(target) = &file.place else { continue };
        let same_place =
            |other: &&&OutputFile| matches!(&other.place, Place::File(own) if own == target);
        if let Some(other) = files[..index].iter().find(same_place) {
            return Err(same(&file.option, &file.path, &other.option));
        }
    }
    Ok(())
}

fn same(option: &str, path: &Path, other: &str) -> OutputError {
    OutputError::Same { option: option.to_owned(), path: path.to_owned(), other: other.to_owned() }
}

fn refused(option: &str, path: &Path, error: io::Error) -> OutputError {
    OutputError::Refused { option: option.to_owned(), path: path.to_owned(), error }
}

/// The directory that a file is in.
fn directory(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Whether two paths lead to one file, over links of either kind. Not by opening them: that would wait for
/// the other end of a pipe.
#[cfg(unix)]
fn is_same(left: &Path, right: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let identity = |path: &Path| fs::metadata(path).ok().map(|file| (file.dev(), file.ino()));
    identity(left).is_some_and(|left| identity(right) == Some(left))
}

/// Whether two paths lead to one file, over symbolic links.
#[cfg(not(unix))]
fn is_same(left: &Path, right: &Path) -> bool {
    let target = |path: &Path| path.canonicalize().ok();
    target(left).is_some_and(|left| target(right) == Some(left))
}

/// A file beside another one, with the permissions of a new file, that is removed when it is dropped.
fn beside(target: &Path) -> io::Result<NamedTempFile> {
    let mut builder = Builder::new();
    builder.prefix(".fattn-").suffix(".partial");
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666)); // less the umask
    builder.tempfile_in(directory(target))
}

/// Puts a file with these bytes in the place of another one, whose permissions it takes, or in a new one.
fn replace(target: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = beside(target)?;
    file.as_file_mut().write_all(bytes)?;
    if let Ok(before) = fs::metadata(target) {
        file.as_file().set_permissions(before.permissions())?;
    }
    file.as_file().sync_all()?; // some file systems only now notice that they are full
    file.persist(target).map_err(|error| error.error)?;
    Ok(())
}
