//! Building the library and finding it: a cdylib cannot be linked into a test, only loaded.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;

/// Builds the library as the running test or bench was built, and returns its path.
pub(crate) fn library() -> Result<PathBuf, String> {
    let here = std::env::current_exe().map_err(|e| e.to_string())?;
    // .../target[/TRIPLE]/PROFILE/deps/NAME-HASH
    let profile = here.parent().and_then(|deps| deps.parent()).ok_or("no profile folder")?;
    let name = profile.file_name().and_then(|n| n.to_str()).ok_or("no profile name")?;
    let above = profile.parent().ok_or("no target folder")?;
    let triple = above.file_name().and_then(|n| n.to_str()).filter(|n| n.contains("-linux-"));
    let target = if triple.is_some() { above.parent().ok_or("no target folder")? } else { above };
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
    let mut build = Command::new(cargo);
    build.args(["build", "--quiet", "-p", "rknpu-sim-preload", "--offline", "--target-dir"]);
    build.arg(target).current_dir(env!("CARGO_MANIFEST_DIR"));
    build.args(["--profile", if name == "debug" { "dev" } else { name }]);
    if let Some(triple) = triple {
        build.args(["--target", triple]);
    }
    let output = build.output().map_err(|e| format!("cargo: {e}"))?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    Ok(profile.join("librknpu_sim_preload.so"))
}
