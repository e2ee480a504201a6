{{/* Names, labels and conditions shared by several templates. */}}

{{- define "allranks.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" }}
{{- end }}

{{- define "allranks.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" }}
{{- else if contains (include "allranks.name" .) .Release.Name }}
{{- .Release.Name | trunc 40 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "allranks.name" .) | trunc 40 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{/* Name of cluster-scoped objects; unique for releases of the same name in different namespaces. */}}
{{- define "allranks.clusterName" -}}
{{- printf "%s:%s" .Release.Namespace (include "allranks.fullname" .) }}
{{- end }}

{{- define "allranks.serviceAccountName" -}}
{{- default (include "allranks.fullname" .) .Values.serviceAccount.name }}
{{- end }}

{{- define "allranks.selectorLabels" -}}
app.kubernetes.io/name: {{ include "allranks.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: operator
{{- end }}

{{- define "allranks.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
app.kubernetes.io/name: {{ include "allranks.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/part-of: allranks
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* The field `annotations` of an object, from (list $ its-own-annotations). Nothing if there are none. */}}
{{- define "allranks.annotations" -}}
{{- with merge (dict) (index . 1 | default dict) (index . 0).Values.commonAnnotations -}}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/*
The repository without its registry: the first part is one if it has a dot or a colon, or is localhost.
From (list $ image), where image has the fields of the value `image`.
*/}}
{{- define "allranks.repositoryOf" -}}
{{- $repository := (index . 1).repository }}
{{- $parts := splitList "/" $repository }}
{{- $registry := ((index . 0).Values.global).imageRegistry | default "" }}
{{- if not $registry }}
{{- $repository }}
{{- else if and (gt (len $parts) 1) (or (regexMatch "[.:]" (first $parts)) (eq (first $parts) "localhost")) }}
{{- printf "%s/%s" (trimSuffix "/" $registry) (rest $parts | join "/") }}
{{- else }}
{{- printf "%s/%s" (trimSuffix "/" $registry) $repository }}
{{- end }}
{{- end }}

{{- define "allranks.imageOf" -}}
{{- $repository := include "allranks.repositoryOf" . }}
{{- $image := index . 1 }}
{{- if $image.digest }}
{{- printf "%s@%s" $repository $image.digest }}
{{- else }}
{{- printf "%s:%s" $repository (default (index . 0).Chart.AppVersion $image.tag) }}
{{- end }}
{{- end }}

{{- define "allranks.repository" -}}
{{- include "allranks.repositoryOf" (list . .Values.image) }}
{{- end }}

{{- define "allranks.image" -}}
{{- include "allranks.imageOf" (list . .Values.image) }}
{{- end }}

{{/* A number or null as a quoted string. Helm reads large numbers as floats. */}}
{{- define "allranks.number" -}}
{{- if kindIs "invalid" . }}""{{ else }}{{ . | int64 | quote }}{{ end }}
{{- end }}

{{/* The following templates return "true" or nothing. */}}

{{- define "allranks.leaderElection" -}}
{{- $enabled := .Values.leaderElection.enabled }}
{{- if kindIs "invalid" $enabled }}{{ $enabled = gt (int .Values.replicas) 1 }}{{ end }}
{{- if $enabled }}true{{ end }}
{{- end }}

{{- define "allranks.pools" -}}
{{- $enabled := .Values.pools.enabled }}
{{- if kindIs "invalid" $enabled }}{{ $enabled = empty .Values.namespaces }}{{ end }}
{{- if $enabled }}true{{ end }}
{{- end }}

{{- define "allranks.nodeHealth" -}}
{{- $enabled := .Values.nodeHealth.enabled }}
{{- if kindIs "invalid" $enabled }}{{ $enabled = empty .Values.namespaces }}{{ end }}
{{- if $enabled }}true{{ end }}
{{- end }}

{{- define "allranks.reports" -}}
{{- $enabled := .Values.reports.enabled }}
{{- if kindIs "invalid" $enabled }}{{ $enabled = empty .Values.namespaces }}{{ end }}
{{- if $enabled }}true{{ end }}
{{- end }}

{{- define "allranks.jobPolicies" -}}
{{- $enabled := .Values.networkPolicy.jobs }}
{{- if kindIs "invalid" $enabled }}{{ $enabled = .Values.networkPolicy.enabled }}{{ end }}
{{- if $enabled }}true{{ end }}
{{- end }}

{{- define "allranks.aggregate" -}}
{{- $enabled := .Values.rbac.aggregate }}
{{- if kindIs "invalid" $enabled }}{{ $enabled = empty .Values.namespaces }}{{ end }}
{{- if $enabled }}true{{ end }}
{{- end }}

{{/* DNS and the API server. */}}
{{- define "allranks.egressToApiServer" -}}
- ports:
    - port: 53
      protocol: UDP
    - port: 53
      protocol: TCP
- ports:
    {{- range .Values.networkPolicy.apiServerPorts }}
    - port: {{ . }}
      protocol: TCP
    {{- end }}
  {{- with .Values.networkPolicy.apiServerCIDRs }}
  to:
    {{- range . }}
    - ipBlock:
        cidr: {{ . }}
    {{- end }}
  {{- end }}
{{- end }}
