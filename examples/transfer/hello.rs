//! Two processes exchange a line through each other's memory, as in hello.c beside this file: the
//! declarations that Rust needs of <inlay/transfer.h>, and a program that stands on them.
//!
//!   hello TOKEN_FILE            offers a greeting, prints its address, and at the end of its input
//!                               what was written into its inbox
//!   hello TOKEN_FILE ADDRESS    prints the greeting of that process and answers into its inbox
//!
//! rustc -O hello.rs -L PREFIX/lib -C link-arg=-Wl,-rpath,PREFIX/lib
use std::ffi::{CStr, CString};
use std::io::Read;
use std::mem::size_of;
use std::os::raw::{c_char, c_void};
use std::ptr::{null, null_mut};

#[repr(C)]
struct Error {
    size: usize,
    code: u32,
    remote_settled: i32,
    text: [c_char; 512],
    peer: [c_char; 64],
    segment: [c_char; 256],
}

#[repr(C)]
struct EngineOptions {
    size: usize,
    listen: *const c_char,
    token: *const c_void,
    token_bytes: usize,
    spin_us: i32,
}

#[repr(C)]
struct Range {
    local: u64,
    remote: u64,
    length: u64,
}

#[repr(C)]
struct Request {
    size: usize,
    op: i32,
    local: *const c_void,
    remote: *const c_void,
    ranges: *const Range,
    num_ranges: usize,
}

const READ: i32 = 0;
const WRITE: i32 = 1;
const ACCESS_NONE: i32 = 0;
const ACCESS_READ: i32 = 1;
const ACCESS_WRITE: i32 = 2;

type Handle = *mut c_void;

#[link(name = "inlay_transfer")]
extern "C" {
    fn inlay_engine_open(
        options: *const EngineOptions,
        engine: *mut Handle,
        error: *mut Error,
    ) -> u32;
    fn inlay_engine_address(engine: Handle) -> *const c_char;
    fn inlay_engine_close(engine: Handle, timeout_s: f64, error: *mut Error) -> u32;
    fn inlay_segment_allocate(
        engine: Handle,
        bytes: u64,
        name: *const c_char,
        access: i32,
        segment: *mut Handle,
        error: *mut Error,
    ) -> u32;
    fn inlay_segment_data(segment: Handle) -> *mut c_void;
    fn inlay_segment_release(segment: Handle);
    fn inlay_peer_connect(
        engine: Handle,
        address: *const c_char,
        timeout_s: f64,
        peer: *mut Handle,
        error: *mut Error,
    ) -> u32;
    fn inlay_peer_segment(
        peer: Handle,
        name: *const c_char,
        timeout_s: f64,
        segment: *mut Handle,
        error: *mut Error,
    ) -> u32;
    fn inlay_remote_release(segment: Handle);
    fn inlay_peer_release(peer: Handle);
    fn inlay_submit(
        engine: Handle,
        requests: *const Request,
        count: usize,
        options: *const c_void,
        batch: *mut Handle,
        error: *mut Error,
    ) -> u32;
    fn inlay_batch_wait(batch: Handle, timeout_s: f64, error: *mut Error) -> u32;
    fn inlay_batch_release(batch: Handle);
}

/// Runs one call; its text becomes the error.
fn call(run: impl FnOnce(*mut Error) -> u32) -> Result<(), String> {
    // All zeros is a valid Error.
    let mut error: Error = unsafe { std::mem::zeroed() };
    error.size = size_of::<Error>();
    match run(&mut error) {
        0 => Ok(()),
        _ => Err(unsafe { CStr::from_ptr(error.text.as_ptr()) }
            .to_string_lossy()
            .into_owned()),
    }
}

fn c_string(text: &str) -> Result<CString, String> {
    CString::new(text).map_err(|e| e.to_string())
}

/// A registered line of text, zero-filled.
struct Line(Handle);

impl Line {
    const BYTES: u64 = 64;

    /// An empty name: no peer asks for it.
    fn new(engine: Handle, name: &str, access: i32, text: &str) -> Result<Line, String> {
        let mut segment = null_mut();
        let c_name = c_string(name)?;
        let name = if name.is_empty() {
            null()
        } else {
            c_name.as_ptr()
        };
        call(|e| unsafe {
            inlay_segment_allocate(engine, Line::BYTES, name, access, &mut segment, e)
        })?;
        let bytes = text.len().min(Line::BYTES as usize - 1);
        unsafe { inlay_segment_data(segment).copy_from(text.as_ptr().cast(), bytes) };
        Ok(Line(segment))
    }

    fn text(&self) -> String {
        let data = unsafe { inlay_segment_data(self.0) } as *const c_char;
        unsafe { CStr::from_ptr(data) }
            .to_string_lossy()
            .into_owned()
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        unsafe { inlay_segment_release(self.0) }
    }
}

fn offer(engine: Handle) -> Result<(), String> {
    let _greeting = Line::new(engine, "greeting", ACCESS_READ, "hello from Rust")?;
    let inbox = Line::new(engine, "inbox", ACCESS_WRITE, "")?;
    println!(
        "{}",
        unsafe { CStr::from_ptr(inlay_engine_address(engine)) }.to_string_lossy()
    );
    std::io::stdin()
        .read_to_end(&mut Vec::new())
        .map_err(|e| e.to_string())?;
    println!("{}", inbox.text());
    Ok(())
}

fn visit(engine: Handle, address: &str) -> Result<(), String> {
    let got = Line::new(engine, "", ACCESS_NONE, "")?;
    let answer = Line::new(engine, "", ACCESS_NONE, "Rust was here")?;
    let address = c_string(address)?;
    let names = [c_string("greeting")?, c_string("inbox")?];
    let (mut peer, mut greeting, mut inbox, mut batch) =
        (null_mut(), null_mut(), null_mut(), null_mut());
    unsafe {
        call(|e| inlay_peer_connect(engine, address.as_ptr(), 5.0, &mut peer, e))?;
        call(|e| inlay_peer_segment(peer, names[0].as_ptr(), 5.0, &mut greeting, e))?;
        call(|e| inlay_peer_segment(peer, names[1].as_ptr(), 5.0, &mut inbox, e))?;
        let line = Range {
            local: 0,
            remote: 0,
            length: Line::BYTES,
        };
        let request = |op, local: &Line, remote| Request {
            size: size_of::<Request>(),
            op,
            local: local.0,
            remote,
            ranges: &line,
            num_ranges: 1,
        };
        let requests = [
            request(READ, &got, greeting),
            request(WRITE, &answer, inbox),
        ];
        call(|e| inlay_submit(engine, requests.as_ptr(), 2, null(), &mut batch, e))?;
        call(|e| inlay_batch_wait(batch, -1.0, e))?;
        println!("{}", got.text());
        inlay_batch_release(batch);
        inlay_remote_release(greeting);
        inlay_remote_release(inbox);
        inlay_peer_release(peer);
    }
    Ok(())
}

fn run() -> Result<(), String> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (token_file, address) = match arguments.as_slice() {
        [token_file] => (token_file, None),
        [token_file, address] => (token_file, Some(address)),
        _ => return Err("usage: hello TOKEN_FILE [ADDRESS]".into()),
    };
    let token = std::fs::read(token_file).map_err(|e| format!("{token_file}: {e}"))?;
    let options = EngineOptions {
        size: size_of::<EngineOptions>(),
        listen: null(),
        token: token.as_ptr().cast(),
        token_bytes: token.len(),
        spin_us: 0,
    };
    let mut engine = null_mut();
    call(|e| unsafe { inlay_engine_open(&options, &mut engine, e) })?;
    match address {
        None => offer(engine)?,
        Some(address) => visit(engine, address)?,
    }
    call(|e| unsafe { inlay_engine_close(engine, 5.0, e) })
}

fn main() {
    if let Err(problem) = run() {
        eprintln!("{problem}");
        std::process::exit(1);
    }
}
