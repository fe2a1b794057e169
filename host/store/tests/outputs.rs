//! Output files: cut back to the checkpoint, rotated without loss, never someone else's.

use std::fs::{self, File};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use proptest::prelude::*;
use tempfile::TempDir;
use walgate_store::{Class, Output, OutputError, OutputFile, OutputMark};

fn place() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("audit.jsonl");
    (folder, path)
}

fn mark(sequence: u64, length: u64) -> Option<OutputMark> {
    Some(OutputMark { sequence, length })
}

fn rotated(path: &Path, sequence: u64) -> PathBuf {
    PathBuf::from(format!("{}.{sequence}", path.display()))
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap()
}

#[track_caller]
fn check(result: Result<OutputFile, OutputError>, halt_name: &str) -> OutputError {
    let error = result.unwrap_err();
    assert_eq!((error.class(), error.halt_name()), (Class::Operator, halt_name), "{error}");
    error
}

#[test]
fn a_crash_is_cut_back_to_the_checkpoint() {
    let (_folder, path) = place();
    let mut output = OutputFile::open(&path, None, None).unwrap();
    output.append(b"one\n").unwrap();
    output.append(b"two\n").unwrap();
    assert_eq!(output.mark(), OutputMark::default(), "nothing counts before the sync");
    assert_eq!(output.sync().unwrap(), OutputMark { sequence: 0, length: 8 });
    output.append(b"never checkpointed\n").unwrap();
    output.sync().unwrap();
    drop(output);
    let mut output = OutputFile::open(&path, mark(0, 8), None).unwrap();
    assert_eq!(read(&path), "one\ntwo\n");
    output.append(b"three\n").unwrap();
    output.sync().unwrap();
    assert_eq!(read(&path), "one\ntwo\nthree\n");
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn removed_data_is_named_and_nothing_is_touched() {
    let (_folder, path) = place();
    fs::write(&path, "short").unwrap();
    let error = check(OutputFile::open(&path, mark(0, 6), None), "output(short)").to_string();
    assert!(error.contains("5 bytes") && error.contains("6 are") && error.contains("audit.jsonl"), "{error}");
    assert_eq!(read(&path), "short");
    fs::remove_file(&path).unwrap();
    check(OutputFile::open(&path, mark(0, 6), None), "output(missing)");
    assert!(!path.exists());
    // No data of it was promised, so it is simply made again.
    OutputFile::open(&path, mark(0, 0), None).unwrap();
    assert!(path.exists());
}

#[test]
fn data_of_someone_else_is_not_taken_over() {
    let (_folder, path) = place();
    fs::write(&path, "precious").unwrap();
    check(OutputFile::open(&path, None, None), "output(foreign)");
    assert_eq!(read(&path), "precious");
    fs::write(&path, "").unwrap();
    OutputFile::open(&path, None, None).unwrap();
}

#[test]
fn only_regular_files_are_written() {
    let (folder, path) = place();
    let target = folder.path().join("target");
    fs::write(&target, "").unwrap();
    symlink(&target, &path).unwrap();
    check(OutputFile::open(&path, None, None), "output(not_a_file)");
    check(OutputFile::open(&path, mark(0, 0), None), "output(not_a_file)");
    check(OutputFile::open(folder.path(), None, None), "output(not_a_file)");
    check(OutputFile::open("/dev/full", None, None), "output(not_a_file)");
    // A link in the place of the lock would make the lock someone else's file.
    fs::remove_file(&path).unwrap();
    symlink(&target, folder.path().join("audit.jsonl.lock")).ok();
    let locks = fs::read_dir(folder.path()).unwrap().filter(|e| e.as_ref().unwrap().file_name() == "audit.jsonl.lock");
    assert_eq!(locks.count(), 1);
    check(OutputFile::open(&path, None, None), "output(not_a_file)");
}

#[test]
fn one_output_has_one_writer() {
    let (_folder, path) = place();
    let first = OutputFile::open(&path, None, None).unwrap();
    check(OutputFile::open(&path, mark(0, 0), None), "output(locked)");
    drop(first);
    OutputFile::open(&path, mark(0, 0), None).unwrap();
}

#[test]
fn rotation_happens_between_marks_only() {
    let (_folder, path) = place();
    let mut output = Output::File(OutputFile::open(&path, None, Some(10)).unwrap());
    output.append(b"0123456789").unwrap();
    output.append(b"over").unwrap();
    assert_eq!(output.sync().unwrap(), OutputMark { sequence: 0, length: 14 }, "one batch is never split");
    output.append(b"next").unwrap();
    assert_eq!(output.sync().unwrap(), OutputMark { sequence: 1, length: 4 });
    output.append(b"").unwrap();
    assert_eq!(output.sync().unwrap(), OutputMark { sequence: 1, length: 4 });
    assert_eq!((read(&rotated(&path, 0)), read(&path)), ("0123456789over".to_owned(), "next".to_owned()));
}

#[test]
fn rotations_the_checkpoint_does_not_know_are_undone() {
    let (folder, path) = place();
    let mut output = OutputFile::open(&path, None, Some(1)).unwrap();
    for part in ["aa", "bb", "cc", "dd"] {
        output.append(part.as_bytes()).unwrap();
        output.sync().unwrap();
    }
    drop(output);
    // A number further away was not made by rotation.
    let dated = folder.path().join("audit.jsonl.20240101");
    fs::write(&dated, "mine").unwrap();
    let output = OutputFile::open(&path, mark(1, 1), Some(1)).unwrap();
    assert_eq!((read(&rotated(&path, 0)), read(&path)), ("aa".to_owned(), "b".to_owned()));
    assert!(!rotated(&path, 1).exists() && !rotated(&path, 2).exists());
    assert_eq!(read(&dated), "mine");
    drop(output);
    // The crash between putting the file aside and making the next one.
    fs::rename(&path, rotated(&path, 1)).unwrap();
    OutputFile::open(&path, mark(1, 1), Some(1)).unwrap();
    assert_eq!(read(&path), "b");
}

#[test]
fn a_rotated_file_that_was_taken_too_early_is_named() {
    let (_folder, path) = place();
    let mut output = OutputFile::open(&path, None, Some(1)).unwrap();
    for part in ["aa", "bb", "cc"] {
        output.append(part.as_bytes()).unwrap();
        output.sync().unwrap();
    }
    drop(output);
    fs::remove_file(rotated(&path, 0)).unwrap();
    check(OutputFile::open(&path, mark(0, 2), Some(1)), "output(missing)");
    assert_eq!(read(&path), "cc");
    fs::write(rotated(&path, 0), "a").unwrap();
    check(OutputFile::open(&path, mark(0, 2), Some(1)), "output(short)");
    assert_eq!((read(&rotated(&path, 1)), read(&path)), ("bb".to_owned(), "cc".to_owned()));
}

#[test]
fn rotation_replaces_no_file() {
    let (_folder, path) = place();
    let mut output = OutputFile::open(&path, None, Some(1)).unwrap();
    output.append(b"aa").unwrap();
    output.sync().unwrap();
    fs::write(rotated(&path, 0), "mine").unwrap();
    assert_eq!(output.append(b"bb").unwrap_err().halt_name(), "output(foreign)");
    assert_eq!((read(&rotated(&path, 0)), read(&path)), ("mine".to_owned(), "aa".to_owned()));
    fs::remove_file(rotated(&path, 0)).unwrap();
    output.append(b"bb").unwrap();
    assert_eq!(output.sync().unwrap(), OutputMark { sequence: 1, length: 2 });
}

/// A file system of 64 KiB, unmounted at the end.
struct Tiny(TempDir);

impl Tiny {
    fn mount() -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let mounted =
            Command::new("mount").args(["-t", "tmpfs", "-o", "size=64k", "tmpfs"]).arg(folder.path()).output();
        match mounted {
            Ok(output) if output.status.success() => Some(Self(folder)),
            _ => {
                println!("skipped: a_full_disk_loses_nothing; a tiny tmpfs cannot be mounted; run as root to have it");
                None
            }
        }
    }
}

impl Drop for Tiny {
    fn drop(&mut self) {
        assert!(Command::new("umount").arg(self.0.path()).status().unwrap().success());
    }
}

#[test]
fn a_full_disk_loses_nothing() {
    let Some(tiny) = Tiny::mount() else { return };
    let path = tiny.0.path().join("out");
    let mut output = OutputFile::open(&path, None, None).unwrap();
    output.append(&[b'a'; 8 << 10]).unwrap();
    let before = output.sync().unwrap();
    output.append(&[b'b'; 16 << 10]).unwrap();
    let error = output.append(&[b'c'; 64 << 10]).unwrap_err();
    assert_eq!((error.class(), error.halt_name()), (Class::Retry, "output(full)"));
    assert!(error.to_string().contains("/out"), "{error}");
    assert_eq!(output.mark(), before);
    assert_eq!(read(&path), "a".repeat(8 << 10), "the file stands at its mark");
    // Space came free, because the failed append was taken back: the batch is appended again, as a whole.
    output.append(&[b'b'; 16 << 10]).unwrap();
    assert_eq!(output.sync().unwrap().length, 24 << 10);
    assert_eq!(read(&path), "a".repeat(8 << 10) + &"b".repeat(16 << 10));
    // A full disk at rotation: the next file cannot get its place, the current one keeps its own.
    drop(output);
    let mut output = OutputFile::open(&path, Some(OutputMark { sequence: 0, length: 24 << 10 }), Some(1)).unwrap();
    assert_eq!(output.append(&[b'd'; 64 << 10]).unwrap_err().halt_name(), "output(full)");
    output.append(b"e").unwrap();
    assert_eq!(output.sync().unwrap(), OutputMark { sequence: 1, length: 1 });
    assert_eq!((read(&path).as_str(), read(&rotated(&path, 0)).len()), ("e", 24 << 10));
}

#[derive(Debug, Clone)]
enum Step {
    Append(u8),
    Sync,
    Checkpoint,
    Crash,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (1_u8..40).prop_map(Step::Append),
        3 => Just(Step::Sync),
        3 => Just(Step::Checkpoint),
        1 => Just(Step::Crash),
    ]
}

/// All bytes of an output in order: rotated files, then the live one.
fn whole(path: &Path, sequence: u64) -> Vec<u8> {
    let files = (0..sequence).map(|n| rotated(path, n)).chain([path.to_owned()]);
    files.flat_map(|file| fs::read(file).unwrap()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever is done in whatever order, a crash leaves exactly the checkpointed bytes.
    #[test]
    fn a_crash_leaves_what_was_checkpointed(steps in prop::collection::vec(step(), 1..60), limit in 1_u64..100) {
        let (_folder, path) = place();
        let mut output = OutputFile::open(&path, None, Some(limit)).unwrap();
        let (mut appended, mut synced, mut next) = (Vec::new(), Vec::new(), 0_u8);
        let mut checkpoint = (OutputMark::default(), Vec::new());
        for step in steps.into_iter().chain([Step::Crash]) {
            match step {
                Step::Append(length) => {
                    next = next.wrapping_add(1);
                    let bytes = vec![next; length.into()];
                    output.append(&bytes).unwrap();
                    appended.extend(bytes);
                }
                Step::Sync => {
                    output.sync().unwrap();
                    synced = appended.clone();
                }
                Step::Checkpoint => checkpoint = (output.mark(), synced.clone()),
                Step::Crash => {
                    drop(output);
                    output = OutputFile::open(&path, Some(checkpoint.0), Some(limit)).unwrap();
                    prop_assert_eq!(&whole(&path, checkpoint.0.sequence), &checkpoint.1);
                    (appended, synced) = (checkpoint.1.clone(), checkpoint.1.clone());
                }
            }
        }
    }
}

#[test]
fn a_lock_file_is_left_and_private() {
    let (folder, path) = place();
    drop(OutputFile::open(&path, None, None).unwrap());
    let lock = File::open(folder.path().join("audit.jsonl.lock")).unwrap();
    assert_eq!(lock.metadata().unwrap().permissions().mode() & 0o777, 0o600);
}
