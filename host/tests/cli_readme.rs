//! The commands of the README that read the files shipped with it.

mod command;

use command::{File, fattn};
use std::path::Path;

const README: &str = include_str!("../README.md");

/// What the README gives to `fattn`: the words of each command that reads one of those files.
fn commands() -> Vec<Vec<String>> {
    let blocks = README.split("\n```sh\n").skip(1).filter_map(|rest| Some(rest.split_once("```")?.0));
    let lines = blocks.map(|block| block.replace("\\\n", " "));
    let commands = lines.flat_map(|block| {
        let given = |line: &str| Some(line.split_once("--bin fattn -- ")?.1.to_owned());
        block.lines().filter_map(given).collect::<Vec<_>>()
    });
    commands
        .filter(|command| command.contains("examples/data/"))
        .map(|command| command.split_whitespace().map(str::to_owned).collect())
        .collect()
}

#[test]
fn every_command_that_reads_a_shipped_file_does_what_the_readme_says() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut ran = Vec::new();
    for mut words in commands() {
        let output = File::new(&format!("readme-{}", words[0]));
        for word in &mut words {
            match word.as_str() {
                "y.safetensors" => output.text().clone_into(word),
                file if file.starts_with("examples/data/") => {
                    *word = root.join(file).to_str().unwrap().to_owned();
                }
                _ => {}
            }
        }
        let answer = fattn(&words.iter().map(String::as_str).collect::<Vec<_>>());
        let [said, error] = [answer.stdout, answer.stderr].map(|text| String::from_utf8(text).unwrap());
        if words[0] == "trace-nonfinite" {
            // The gradient of one query overflows f16.
            assert_eq!(answer.status.code(), Some(1), "{said}\n{error}");
            assert!(said.contains("[0, 23, 0, 0]") && said.contains("\nstage dK of "), "{said}");
        } else {
            assert!(answer.status.success(), "{words:?}: {said}\n{error}");
            assert!(output.0.is_file(), "{words:?}");
        }
        ran.push(words[0].clone());
    }
    ran.sort();
    assert_eq!(ran, ["msda", "ring", "trace-nonfinite"]);
}
