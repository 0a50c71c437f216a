# Device sources are data to the build: embedded as text, compiled at run time by NVRTC.
# verglas_embed(<output.cpp> <folder> <glob>) adds the rule that writes the output; a changed, added or removed file reruns it.
set(VERGLAS_EMBED_SCRIPT ${CMAKE_CURRENT_LIST_DIR}/embed.cmake)
function(verglas_embed output folder glob)
  file(GLOB names CONFIGURE_DEPENDS RELATIVE ${folder} ${folder}/${glob})
  list(TRANSFORM names PREPEND ${folder}/ OUTPUT_VARIABLE sources)
  list(LENGTH names count)
  # The names are part of the command, since a removed file makes no dependency newer.
  add_custom_command(
    OUTPUT ${output}
    COMMAND ${CMAKE_COMMAND} -DDIR=${folder} "-DNAMES=${names}" -DOUT=${output} -P ${VERGLAS_EMBED_SCRIPT}
    DEPENDS ${sources} ${VERGLAS_EMBED_SCRIPT}
    COMMENT "Embedding ${count} sources of ${folder}"
    VERBATIM)
endfunction()

set(VERGLAS_EMBEDDED ${PROJECT_BINARY_DIR}/generated/embedded_sources.cpp)
file(MAKE_DIRECTORY ${PROJECT_BINARY_DIR}/generated)
verglas_embed(${VERGLAS_EMBEDDED} ${PROJECT_SOURCE_DIR}/src/engine/sm90/kernels *.cuh)
target_sources(verglas PRIVATE ${VERGLAS_EMBEDDED})
